// dynatrain import and export: between Hugging Face folders and our checkpoints.
#include <cstdio>
#include <memory>

#include "dynatrain/apps/commands.h"
#include "dynatrain/apps/flags.h"
#include "dynatrain/apps/output.h"
#include "dynatrain/io/checkpoint.h"
#include "dynatrain/models/catalog.h"
#include "dynatrain/trainer/hugging_face.h"

namespace dynatrain::apps {
namespace {

struct ImportFlags {
  std::string from;
  std::string output;
  std::string dtype = "fp32";
};

struct ExportFlags {
  std::string from;
  std::string output;
  std::string model;  // empty: what the checkpoint's run was started with
  std::string dtype;  // empty: the parameters' own
};

Result<std::shared_ptr<const vps::StateCatalog>> CatalogOf(const models::ModelConfig& model,
                                                           vps::DType dtype) {
  const bool bf16 = dtype == vps::DType::kBF16;
  return models::MakeCatalog(model, bf16 ? vps::Bf16AdamKinds() : vps::Fp32AdamKinds());
}

Result<vps::DType> ParseTrainingDType(const std::string& name) {
  if (name == "fp32") return vps::DType::kF32;
  if (name == "bf16") return vps::DType::kBF16;
  return InvalidArgument("--dtype {}: give fp32 or bf16", name);
}

Result<std::string> Import(const ImportFlags& flags) {
  DT_ASSIGN_OR_RETURN(const vps::DType dtype, ParseTrainingDType(flags.dtype));
  DT_ASSIGN_OR_RETURN(const models::ModelConfig model, models::LoadModel(flags.from));
  DT_ASSIGN_OR_RETURN(const auto catalog, CatalogOf(model, dtype));
  // A buffer for each parameter: no more is in memory at a time.
  DT_ASSIGN_OR_RETURN(const vps::Layout layout, vps::ParseLayout("dp=1,zero_order=forward-param"));
  DT_ASSIGN_OR_RETURN(const auto map, vps::LayoutShardMap::Make(catalog, layout));
  DT_ASSIGN_OR_RETURN(const auto reader, trainer::HuggingFaceReader::Open(flags.from, model, map));
  const Result<io::SavedShards> part = io::SaveShards(
      flags.output, 0, *map, 0, [&](vps::BufferIndex index) { return reader->Buffer(index); });
  if (!part.ok()) io::DropPartial(flags.output, 0);
  DT_RETURN_IF_ERROR(part.status());
  // No run has made it: it has no position in any data, and no job state.
  io::CheckpointInfo info{.step = 0,
                          .layout = layout,
                          .job_state = {},
                          .catalog_fingerprint = catalog->Fingerprint(),
                          .dtype = flags.dtype,
                          .run = {{"model", flags.from}},
                          .digest = 0,
                          .files = {}};
  return io::FinishCheckpoint(flags.output, &info, {*part});
}

Result<std::string> Export(const ExportFlags& flags) {
  DT_ASSIGN_OR_RETURN(const std::string path, io::FindCheckpoint(flags.from));
  DT_ASSIGN_OR_RETURN(const io::CheckpointInfo info, io::ReadCheckpointInfo(path));
  DT_RETURN_IF_ERROR(io::CheckFiles(path, info));
  DT_ASSIGN_OR_RETURN(const vps::DType own, ParseTrainingDType(info.dtype));
  DT_ASSIGN_OR_RETURN(const vps::DType dtype,
                      flags.dtype.empty() ? own : ParseTrainingDType(flags.dtype));
  const auto made_with = info.run.find("model");
  const std::string name = !flags.model.empty()          ? flags.model
                           : made_with == info.run.end() ? std::string()
                                                         : made_with->second;
  if (name.empty()) return InvalidArgument("{} does not tell its model; give --model", path);
  const Result<models::ModelConfig> model = models::LoadModel(name);
  if (!model.ok()) return model.status().Within(fmt::format("the model of {}", path));
  DT_ASSIGN_OR_RETURN(const auto catalog, CatalogOf(*model, own));
  DT_ASSIGN_OR_RETURN(const auto reader, io::CheckpointReader::Open(path, info, catalog));
  const auto read = [&](vps::TensorId tensor, const vps::Box& box, ByteSpan run) {
    return reader->Read(tensor, box, run);
  };
  DT_RETURN_IF_ERROR(trainer::WriteHuggingFace(flags.output, *model, *catalog, read, dtype));
  return path;
}

}  // namespace

void AddImportCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "import", "make a checkpoint of step 0 from the weights of a Hugging Face folder");
  auto flags = std::make_shared<ImportFlags>();
  command->add_option("FOLDER", flags->from, "with config.json and safetensors files")->required();
  command->add_option("-o,--output", flags->output, "directory of checkpoints to write to")
      ->required();
  AddChoice(*command, "--dtype", flags->dtype, {"fp32", "bf16"},
            "that the run will have: fp32 or bf16")
      ->capture_default_str();
  command->callback([flags, exit_code] {
    const Result<std::string> path = Import(*flags);
    *exit_code = ExitCode("import", path.status());
    if (!path.ok()) return;
    std::printf("%s\ntrain it with: dynatrain train --model %s --dtype %s --resume %s ...\n",
                path->c_str(), flags->from.c_str(), flags->dtype.c_str(), flags->output.c_str());
  });
}

void AddExportCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("export", "write a checkpoint's weights as a Hugging Face folder");
  auto flags = std::make_shared<ExportFlags>();
  command->add_option("DIR", flags->from, "a checkpoint, or a directory of them: the newest")
      ->required();
  command->add_option("-o,--output", flags->output, "folder to write to")->required();
  command->add_option("--model", flags->model,
                      "a preset or config.json (default: what the run was started with)");
  AddChoice(*command, "--dtype", flags->dtype, {"fp32", "bf16"},
            "of the weights written: fp32 (of a bf16 run: its masters) or bf16 (default: the "
            "parameters' own)");
  command->callback([flags, exit_code] {
    const Result<std::string> path = Export(*flags);
    *exit_code = ExitCode("export", path.status());
    if (path.ok()) std::printf("%s -> %s\n", path->c_str(), flags->output.c_str());
  });
}

}  // namespace dynatrain::apps
