#include "dynatrain/base/text_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace dynatrain {
namespace {

class ReadTextFileTest : public testing::Test {
 protected:
  ReadTextFileTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                fmt::format("dynatrain_text_file_{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ReadTextFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const char* name) const { return (folder_ / name).string(); }

  const std::filesystem::path folder_;
};

TEST_F(ReadTextFileTest, ReadsAllBytesOfARegularFile) {
  const std::string text = std::string(100'000, 'a') + '\0' + "end";
  std::ofstream(Path("text"), std::ios::binary) << text;
  EXPECT_EQ(*ReadTextFile(Path("text")), text);
  std::ofstream(Path("empty"));
  EXPECT_EQ(*ReadTextFile(Path("empty")), "");
  std::filesystem::create_symlink("text", Path("link"));
  EXPECT_EQ(*ReadTextFile(Path("link")), text);
  EXPECT_FALSE(ReadTextFile("/proc/self/status")->empty());
}

TEST_F(ReadTextFileTest, RefusesAtOnceWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const auto& [path, kind] : {std::pair{Path("pipe"), "a pipe"},
                                   {std::string("/dev/zero"), "a device"},
                                   {folder_.string(), "a folder"}}) {
    const Status status = ReadTextFile(path).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(status.message(), fmt::format("{}; right is a regular file of at most 16 MiB", kind));
  }
  EXPECT_EQ(ReadTextFile(Path("missing")).status().code(), StatusCode::kNotFound);
}

TEST_F(ReadTextFileTest, RefusesMoreThanTheLongestText) {
  std::ofstream(Path("long"));
  std::filesystem::resize_file(Path("long"), kLongestTextFile);
  EXPECT_EQ(static_cast<ByteCount>(ReadTextFile(Path("long"))->size()), kLongestTextFile);
  std::filesystem::resize_file(Path("long"), int64_t{1} << 40);
  const Status status = ReadTextFile(Path("long")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(status.message().ends_with("of at most 16 MiB")) << status.message();
}

}  // namespace
}  // namespace dynatrain
