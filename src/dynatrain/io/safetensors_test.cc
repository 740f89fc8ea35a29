#include "dynatrain/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "dynatrain/base/random.h"

namespace dynatrain::io {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) /
                 fmt::format("safetensors-{}-{}", ::getpid(),
                             testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ / name; }
  std::string WriteText(const std::string& text) const {
    std::ofstream(Path("raw"), std::ios::binary) << text;
    return Path("raw");
  }

  fs::path directory_;
};

std::string WithHeader(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size() & 0xff);
  text[1] = static_cast<char>(header.size() >> 8);
  return text + header + data;
}

TEST_F(SafetensorsTest, WhatIsWrittenIsReadByNameWithItsMetadata) {
  const std::array<float, 6> numbers = {0.0f, -0.0f, 1.5f, 3.25f, -2.0f, 7.0f};
  const std::vector<TensorView> tensors = {
      {"z", vps::DType::kF32, {2, 3}, std::as_bytes(std::span(numbers))},
      {"empty", vps::DType::kBF16, {0, 4}, {}},
      {"scalar", vps::DType::kF32, {}, std::as_bytes(std::span(numbers).subspan(3, 1))}};
  ASSERT_TRUE(WriteSafetensors(Path("a"), tensors, {{"step", "17"}}).ok());

  const Result<SafetensorsFile> file = SafetensorsFile::Open(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->metadata().at("step"), "17");
  ASSERT_EQ(file->tensors().size(), 3u);
  for (const TensorView& written : tensors) {
    const Result<TensorView> read = file->Find(written.name);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->dtype, written.dtype);
    EXPECT_EQ(read->shape, written.shape);
    EXPECT_TRUE(std::ranges::equal(read->data, written.data)) << written.name;
  }
  EXPECT_EQ(file->Find("y").status().code(), StatusCode::kNotFound);
}

TEST_F(SafetensorsTest, ReadsAFileLaidOutByHand) {
  const std::string path = WriteText(WithHeader(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "xyz"));
  const Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(static_cast<char>(file->Find("a")->data[0]), 'x');
  EXPECT_EQ(static_cast<char>(file->Find("b")->data[1]), 'z');
}

TEST_F(SafetensorsTest, RefusesDamagedFilesByName) {
  const std::vector<std::string> damaged = {
      "",
      "short",
      std::string(8, '\xff'),
      WithHeader("[]", ""),
      WithHeader("{", ""),
      WithHeader(R"({"a":3})", ""),
      WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abc"),
      WithHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd"),
      WithHeader(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd"),
      WithHeader(R"({"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}})", "abcd"),
      WithHeader(R"({"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}})",
                 "abcd"),
      WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "abcd")};
  for (const std::string& text : damaged) {
    const std::string path = WriteText(text);
    const Result<SafetensorsFile> file = SafetensorsFile::Open(path);
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(file.status().message(), testing::HasSubstr(path));
  }
}

TEST_F(SafetensorsTest, RefusesAPipeAtOnce) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const Status status = SafetensorsFile::Open(Path("pipe")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("pipe is not a regular file"));
}

TEST_F(SafetensorsTest, RefusesANameThatIsGivenTwice) {
  const std::string entry = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string metadata = R"("__metadata__":{"step":"1","step":"2"})";
  EXPECT_TRUE(SafetensorsFile::Open(WriteText(WithHeader("{" + entry + "}", "abcd"))).ok());
  for (const auto& [header, key] :
       {std::pair(entry + "," + entry, "'a'"), std::pair(entry + "," + metadata, "'step'")}) {
    const auto file = SafetensorsFile::Open(WriteText(WithHeader("{" + header + "}", "abcd")));
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(file.status().message(),
                testing::HasSubstr(fmt::format("key {} is given twice", key)));
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::array<float, 3> numbers = {1, 2, 3};
  ASSERT_TRUE(WriteSafetensors(
                  Path("a"), {{"a", vps::DType::kF32, {3}, std::as_bytes(std::span(numbers))}}, {})
                  .ok());
  const auto length = static_cast<int64_t>(fs::file_size(Path("a")));
  for (int64_t keep = length - 1; keep >= 0; --keep) {
    fs::resize_file(Path("a"), static_cast<uintmax_t>(keep));
    EXPECT_FALSE(SafetensorsFile::Open(Path("a")).ok()) << keep << " of " << length << " bytes";
  }
}

TEST_F(SafetensorsTest, RandomDamageNeverReadsOutsideTheFile) {
  const std::string good = WithHeader(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
  Random random(20261130);
  for (int round = 0; round < 500; ++round) {
    std::string text = good;
    for (int64_t i = random.Between(1, 4); i > 0; --i) {
      text[static_cast<size_t>(random.Between(0, static_cast<int64_t>(text.size()) - 1))] =
          static_cast<char>(random.Between(0, 255));
    }
    const Result<SafetensorsFile> file = SafetensorsFile::Open(WriteText(text));
    if (!file.ok()) continue;
    for (const TensorView& tensor : file->tensors()) {
      const std::string_view data(reinterpret_cast<const char*>(tensor.data.data()),
                                  tensor.data.size());
      EXPECT_NE(text.find(data), std::string::npos) << text;
    }
  }
}

TEST_F(SafetensorsTest, RefusesToWriteWhatDoesNotFitAndKeepsTheOldFile) {
  const std::array<float, 3> numbers = {1, 2, 3};
  const ConstByteSpan data = std::as_bytes(std::span(numbers));
  ASSERT_TRUE(WriteSafetensors(Path("a"), {{"a", vps::DType::kF32, {3}, data}}, {}).ok());
  EXPECT_FALSE(WriteSafetensors(Path("a"), {{"a", vps::DType::kF32, {4}, data}}, {}).ok());
  EXPECT_FALSE(
      WriteSafetensors(Path("a"),
                       {{"a", vps::DType::kF32, {3}, data}, {"a", vps::DType::kF32, {3}, data}}, {})
          .ok());
  EXPECT_FALSE(WriteSafetensors(Path("no/such/dir"), {}, {}).ok());
  EXPECT_TRUE(SafetensorsFile::Open(Path("a")).ok());
}

}  // namespace
}  // namespace dynatrain::io
