#include "dynatrain/trainer/token_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "dynatrain/trainer/data.h"

namespace dynatrain::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("token-file-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  template <class T>
  static std::string Raw(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  static std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return Raw(header);
  }
  // As Megatron writes it: lengths, positions in bytes, documents.
  static std::string MegatronIndex(uint8_t code, const std::vector<int32_t>& lengths, int width) {
    std::vector<int64_t> positions, documents = {0, static_cast<int64_t>(lengths.size())};
    int64_t position = 0;
    for (const int32_t length : lengths) {
      positions.push_back(position);
      position += int64_t{length} * width;
    }
    return std::string("MMIDIDX\0\0", 9) + Raw<uint64_t>({1}) + static_cast<char>(code) +
           Raw<uint64_t>({lengths.size(), documents.size()}) + Raw(lengths) + Raw(positions) +
           Raw(documents);
  }

  fs::path folder_;
};

TEST_F(TokenFileTest, ATextIsBytes) {
  const Result<TokenFile> file = FindTokens(Write("text.txt", "abc"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->kind, "text");
  EXPECT_EQ(file->tokens, 3);
  EXPECT_EQ(file->token_bytes, 1);
  EXPECT_EQ(file->offset, 0);
  EXPECT_EQ(FindTokens(Write("empty", ""))->tokens, 0);
}

TEST_F(TokenFileTest, LlmcFilesOfBothWidths) {
  const auto narrow =
      FindTokens(Write("a.bin", LlmcHeader(20240520, 1, 3) + Raw<uint16_t>({7, 8, 65535})));
  ASSERT_TRUE(narrow.ok()) << narrow.status().ToString();
  EXPECT_EQ(narrow->kind, "llm.c");
  EXPECT_EQ(narrow->offset, 1024);
  EXPECT_EQ(narrow->tokens, 3);
  EXPECT_EQ(narrow->token_bytes, 2);
  const auto wide = FindTokens(Write("b", LlmcHeader(20240801, 7, 2) + Raw<uint32_t>({1, 100000})));
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  EXPECT_EQ(wide->token_bytes, 4);
}

TEST_F(TokenFileTest, MegatronPairsByEitherName) {
  for (const auto& [code, width] : {std::pair{1, 1}, std::pair{8, 2}, std::pair{4, 4}}) {
    const std::string index =
        Write("d.idx", MegatronIndex(static_cast<uint8_t>(code), {2, 0, 3}, width));
    const std::string data = Write("d.bin", std::string(static_cast<size_t>(5 * width), '\x01'));
    for (const std::string& name : {index, data}) {
      const auto file = FindTokens(name);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      EXPECT_EQ(file->kind, "Megatron");
      EXPECT_EQ(file->path, data);
      EXPECT_EQ(file->tokens, 5);
      EXPECT_EQ(file->token_bytes, width);
      EXPECT_EQ(file->offset, 0);
    }
  }
}

TEST_F(TokenFileTest, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& path) { return FindTokens(path).status().message(); };
  EXPECT_THAT(error(Path("none")), HasSubstr(Path("none")));
  EXPECT_THAT(error(folder_), HasSubstr("no regular file"));
  EXPECT_THAT(error(Write("bare.bin", "xyz")), AllOf(HasSubstr("bare.bin"), HasSubstr("bare.idx")));
  EXPECT_THAT(error(Write("short.bin", LlmcHeader(20240520, 1, 3) + Raw<uint16_t>({7, 8}))),
              AllOf(HasSubstr("3 tokens"), HasSubstr("1028 bytes"), HasSubstr("1030")));
  EXPECT_THAT(error(Write("long.bin", LlmcHeader(20240520, 1, -1))), HasSubstr("-1 tokens"));
  Write("e.bin", "0123");
  EXPECT_THAT(error(Write("e.idx", "MMIDIDX")), HasSubstr("no Megatron index"));
  EXPECT_THAT(error(Write("e.idx", MegatronIndex(6, {2}, 2))), HasSubstr("element type 6"));
  EXPECT_THAT(error(Write("e.idx", MegatronIndex(8, {3}, 2))),
              AllOf(HasSubstr("4 bytes"), HasSubstr("3 tokens")));
  const std::string whole = MegatronIndex(8, {2}, 2);
  EXPECT_TRUE(FindTokens(Write("e.idx", whole)).ok());
  for (size_t keep = 0; keep < whole.size(); ++keep) {
    EXPECT_FALSE(FindTokens(Write("e.idx", whole.substr(0, keep))).ok()) << keep;
  }
  fs::remove(Path("e.bin"));
  EXPECT_THAT(error(Write("e.idx", whole)), HasSubstr("e.bin"));
}

// The same ids in every kind of file are the same samples.
TEST_F(TokenFileTest, AllKindsOfFilesShowTheSameSamples) {
  const std::string letters = "the same ids in four files";
  const std::vector<uint16_t> narrow(letters.begin(), letters.end());
  const std::vector<uint32_t> wide(letters.begin(), letters.end());
  const auto count = static_cast<int32_t>(letters.size());
  Write("m.bin", Raw(narrow));
  const std::vector<std::string> paths = {
      Write("text", letters), Write("l.bin", LlmcHeader(20240520, 1, count) + Raw(narrow)),
      Write("w.bin", LlmcHeader(20240801, 7, count) + Raw(wide)),
      Write("m.idx", MegatronIndex(8, {count - 3, 3}, 2))};
  const auto text = *TextData::Open(paths[0], 5, 3, 128);
  for (const std::string& path : paths) {
    const auto data = TextData::Open(path, 5, 3, 128);
    ASSERT_TRUE(data.ok()) << data.status().ToString();
    EXPECT_EQ((*data)->num_samples(), 5);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(*(*data)->Sample(i), *text->Sample(i)) << path;
      EXPECT_EQ((*data)->Order(i, 9), text->Order(i, 9)) << path;
    }
    EXPECT_FALSE(TextData::Open(path, 5, 3, 't').ok()) << path;
    EXPECT_FALSE(TextData::Open(path, 9, 3, 128).ok()) << path;
  }
  EXPECT_THAT(TextData::Open(paths[1], 5, 3, 't').status().message(),
              AllOf(HasSubstr("token 116 at position 0"), HasSubstr("vocabulary of 116")));
  EXPECT_THAT(TextData::Open(paths[1], 9, 3, 128).status().message(), HasSubstr("has 26 tokens"));
}

}  // namespace
}  // namespace dynatrain::trainer
