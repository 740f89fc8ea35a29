#include "dynatrain/elastic/switch_votes.h"

#include <utility>

#include "dynatrain/base/json.h"

namespace dynatrain::elastic {
namespace {

using Json = nlohmann::json;

Json DigestToJson(const vps::StateDigest& digest) {
  return Json::array({digest.digest, digest.replica});
}

vps::StateDigest DigestFromJson(const Json& json) {
  return {json.at(0).get<uint64_t>(), json.at(1).get<uint64_t>()};
}

Status CheckErrors(const Votes& votes) {
  for (const auto& [rank, vote] : votes) {
    if (!vote.error.empty()) return Aborted("rank {}: {}", rank, vote.error);
  }
  return Status::Ok();
}

Status CheckJobStates(const Votes& votes) {
  const Vote* first = nullptr;
  RankId first_rank = 0;
  for (const auto& [rank, vote] : votes) {
    if (!vote.is_old) continue;
    if (!first) {
      first = &vote;
      first_rank = rank;
    } else if (vote.job_state_hash != first->job_state_hash) {
      return DataLoss("job state differs between ranks {} and {} of the old layout", first_rank,
                      rank);
    }
  }
  return Status::Ok();
}

Status CheckDigests(const VerifiedSum& sum) {
  if (sum.before.replica != 0) {
    return DataLoss("replicas of the old layout differ (replica check {:#x}, not 0)",
                    sum.before.replica);
  }
  if (sum.after.replica != 0) {
    return DataLoss("replicas of the new layout differ (replica check {:#x}, not 0)",
                    sum.after.replica);
  }
  if (sum.before.digest != sum.after.digest) {
    return DataLoss("state digest {:#x} before the move is {:#x} after it", sum.before.digest,
                    sum.after.digest);
  }
  return Status::Ok();
}

}  // namespace

Vote Vote::No(std::string error) {
  Vote vote;
  vote.error = std::move(error);
  return vote;
}

std::string Vote::ToJson() const {
  Json json;
  if (!error.empty()) {
    json["error"] = error;
  } else {
    json = {{"fingerprint", fingerprint},
            {"catalog", catalog},
            {"balance", balance},
            {"is_old", is_old},
            {"job_state_hash", job_state_hash},
            {"before", DigestToJson(before)},
            {"after", DigestToJson(after)},
            {"ties", ties}};
    if (!peaks.empty()) json["peaks"] = peaks;
  }
  return DumpJson(json);
}

Vote Vote::FromJson(const std::string& text) {
  const Result<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return No(fmt::format("unreadable vote: {}", parsed.status().message()));
  Vote vote;
  try {
    const Json& json = *parsed;
    if (json.contains("error")) {
      vote.error = json.at("error").get<std::string>();
      if (vote.error.empty()) vote.error = "no reason given";
      return vote;
    }
    vote.fingerprint = json.at("fingerprint").get<uint64_t>();
    vote.catalog = json.at("catalog").get<uint64_t>();
    vote.balance = json.at("balance").get<uint64_t>();
    vote.is_old = json.at("is_old").get<bool>();
    vote.job_state_hash = json.at("job_state_hash").get<uint64_t>();
    vote.before = DigestFromJson(json.at("before"));
    vote.after = DigestFromJson(json.at("after"));
    vote.ties = json.at("ties").get<engine::TieSums>();
    if (json.contains("peaks")) vote.peaks = json.at("peaks").get<std::vector<ByteCount>>();
  } catch (const Json::exception& e) {
    return No(fmt::format("unreadable vote: {}", e.what()));
  }
  return vote;
}

Status CheckPlanned(const Votes& votes) {
  DT_RETURN_IF_ERROR(CheckErrors(votes));
  const auto& [first_rank, first] = *votes.begin();
  uint64_t balance = 0;
  for (const auto& [rank, vote] : votes) {
    if (vote.catalog != first.catalog) {
      return FailedPrecondition(
          "ranks {} and {} registered different state (catalogs {:#x} and {:#x}): the same tensors "
          "in the same order on every rank is right",
          first_rank, rank, first.catalog, vote.catalog);
    }
    if (vote.fingerprint != first.fingerprint) {
      return FailedPrecondition(
          "ranks {} and {} planned different switches (fingerprints {:#x} and {:#x}): catalog, "
          "layouts, topology, options and build must be equal",
          first_rank, rank, first.fingerprint, vote.fingerprint);
    }
    balance += vote.balance;
  }
  if (balance != 0) {
    return Internal("what ranks will send and receive does not match (balance {:#x}, not 0)",
                    balance);
  }
  return Status::Ok();
}

VerifiedSum CheckVerified(const Votes& votes, engine::Verify verify) {
  VerifiedSum sum;
  sum.status = CheckErrors(votes);
  if (sum.status.ok()) sum.status = CheckJobStates(votes);
  engine::TieSums ties;
  for (const auto& [rank, vote] : votes) {
    sum.before = vps::Combine(sum.before, vote.before);
    sum.after = vps::Combine(sum.after, vote.after);
    engine::AddTies(vote.ties, &ties);
  }
  if (sum.status.ok()) sum.status = engine::CheckTies(ties);
  if (sum.status.ok() && verify == engine::Verify::kFull) sum.status = CheckDigests(sum);
  return sum;
}

}  // namespace dynatrain::elastic
