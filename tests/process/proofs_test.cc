// Cards that the GPU suite has not run on, with the fake driver and the fake NVRTC: what
// octile-prover finds of their kernels before the first is handed out, and what becomes of this
// process if a kernel is wrong, does not end or breaks its context.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/proofs.h"
#include "runtime/api/boundary.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/device.h"
#include "runtime/engine/library.h"
#include "runtime/engine/unit_answers.h"
#include "runtime/measure/gpu_session.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tools/command.h"

namespace octile::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Its scales are those that an instruction may multiply.
const std::string kInsideText =
    "gemm m=? n=256 k=512 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr int kSkipped = 77;

// Has the system refuse processes to this one, and no threads.
bool refuse_processes() {
  std::array filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
                    sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
                    sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Quantisers, and a GEMM of each unit and a second one of a unit that multiplies scales.
constexpr std::size_t kQuantisers = 10, kGemms = 3;
// Forms of a unit that no card is known to compute right by.
constexpr std::size_t kMoreForms = 23;

class Proofs : public ::testing::Test {
 protected:
  Proofs() {
    set("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH);
    set("FAKE_CUDA_LAUNCHES", launches_path());
  }
  ~Proofs() override {
    for (const std::string& name : variables_) ::unsetenv(name.c_str());
  }

  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  // Has the launches of kernels whose names have a part misbehave.
  void misbehave(const std::string& what) { set("FAKE_CUDA_FAULT", what); }

  // Returns the launches in octile-prover so far, whose kernels begin with a word.
  std::vector<std::string> launches(std::string_view word = "octile") const {
    std::vector<std::string> lines;
    std::ifstream file(launches_path());
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(word)) lines.push_back(line);
    return lines;
  }
  static std::vector<std::string> warnings(const LibraryHandle& library) {
    std::vector<std::string> all = library.log.of(OCTILE_LOG_WARNING);
    std::erase_if(all, [](const std::string& text) {
      return text.find("known-answer test") == std::string::npos;
    });
    return all;
  }
  static std::string config_of(const PlanHandle& plan) {
    return describe(plan.get()).at("kernels").at(0).at("config").get<std::string>();
  }
  std::size_t count_entries() const {
    namespace fs = std::filesystem;
    const fs::recursive_directory_iterator files(cache_.path() + "/v1");
    return static_cast<std::size_t>(std::count_if(begin(files), end(files), [](const auto& file) {
      return file.path().extension() == ".octile";
    }));
  }
  // Returns the outcomes that are kept of the first device.
  std::vector<cache::Proof> kept() const { return kept_of_first().read().value(); }
  cache::Proofs kept_of_first() const {
    const auto target = resolve_target("cuda:0");
    return {cache_.path(), device_uuid(*target->driver, target->ordinal).value()};
  }

  // Forgets the outcomes that are wrong, so that a new handle does their tests again, and no other.
  void forget_what_is_wrong() const {
    const cache::Proofs proofs = kept_of_first();
    const std::vector<cache::Proof> all = kept();
    ASSERT_TRUE(std::filesystem::remove(proofs.path()));
    for (const cache::Proof& proof : all) {
      if (proof.is_right()) {
        ASSERT_TRUE(proofs.put(proof));
      }
    }
  }

  // Returns the configurations that three threads get. Whoever comes while the device is tested
  // waits, and gets the same unit.
  static std::vector<std::string> configs_of_threads(const LibraryHandle& library) {
    std::vector<std::string> configs(3);
    std::vector<std::jthread> threads;
    for (std::string& config : configs) {
      threads.emplace_back([&] {
        const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
        ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
        config = config_of(plan);
      });
    }
    threads.clear();
    return configs;
  }

  // The device of this process computes, and what it was asked to do is done.
  static void expect_alive(const FakeDevice& device) {
    const auto [context, guard] = device.enter();
    const auto stream = Stream::create(device.driver);
    ASSERT_TRUE(stream);
    EXPECT_TRUE(stream->synchronize());
    EXPECT_EQ(device.fake.launch_count(), 0U) << "no kernel is launched by the tests in here";
  }

  // Waits until no process of octile-prover of this test runs. A zombie that process 1 does not
  // wait for has no name of its file.
  bool no_prover_runs() const {
    namespace fs = std::filesystem;
    const auto is_ours = [&](const fs::path& process) {
      std::error_code error;
      if (fs::read_symlink(process / "exe", error).filename() != "octile-prover") return false;
      return text_of(process / "environ").find(launches_path()) != std::string::npos;
    };
    for (int i = 0; i < 1000; ++i) {
      const fs::directory_iterator processes("/proc");
      if (std::none_of(begin(processes), end(processes),
                       [&](const auto& entry) { return is_ours(entry.path()); }))
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  TempFolder cache_;

 private:
  std::string launches_path() const { return cache_.path() + ".launches"; }
  std::vector<std::string> variables_;
};

TEST_F(Proofs, AreFoundOnceForAMachine) {
  const FakeDevice device("rtx5090,h200");
  {
    const LibraryHandle library(cache_.path());
    const PlanHandle hopper = make_plan(library, "cuda:1", kQuantizeText);
    ASSERT_EQ(octile_plan_prepare(hopper.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(launches(), IsEmpty());
    const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(launches("octile_gemm"), SizeIs(kGemms));
    EXPECT_THAT(launches(), SizeIs(kQuantisers + kGemms));
    EXPECT_THAT(launches(), Each(EndsWith(" 1"))) << "kernels wait for each other by themselves";
    EXPECT_THAT(launches(), Contains(HasSubstr("_cluster"))) << "and some are of clusters";
    ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(warnings(library), IsEmpty());
  }
  // Another process would find the same file.
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), HasSubstr("unit=mma_scaled"));
  EXPECT_THAT(warnings(library), IsEmpty());
  EXPECT_THAT(launches(), SizeIs(kQuantisers + kGemms));
  EXPECT_THAT(kept(), SizeIs(kQuantisers + kGemms));
  for (const cache::Proof& proof : kept()) {
    EXPECT_EQ(proof.device.size(), 32U);
    EXPECT_THAT(proof.driver, HasSubstr("libcuda.so"));
    EXPECT_TRUE(proof.is_right()) << proof.wrong;
  }
  EXPECT_EQ(kept().back().sum_bits, 25);
  expect_alive(device);
}

// The call clears memory, finds the tensor's maximum by one kernel and quantises by another.
TEST_F(Proofs, HaveEveryKernelOfACall) {
  ::unsetenv("OCTILE_LIBNVRTC");
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  const FakeDevice device("l40s");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(launches("octile_amax"), SizeIs(1));
  EXPECT_THAT(launches("octile_quantize"), SizeIs(kQuantisers - 2));
  EXPECT_THAT(launches("octile_transpose"), SizeIs(1));
  EXPECT_THAT(launches("octile_dequantize"), SizeIs(1));
  EXPECT_THAT(launches("octile_gemm"), SizeIs(1));
  EXPECT_THAT(launches(), Each(EndsWith(" 1 0"))) << "Ada has no clusters and no PDL";
  EXPECT_THAT(warnings(library), IsEmpty());
}

TEST_F(Proofs, QuantisersThatWriteOtherBitsAreRefused) {
  misbehave("wrong:octile_quantize");
  const FakeDevice device("l40s");
  const std::string repeated = " (as found earlier; `octile doctor` repeats the test)";
  for (const bool is_first : {true, false}) {
    const LibraryHandle library(cache_.path());
    for (const std::string& text : {kQuantizeText, kGemmText}) {
      const PlanHandle plan = make_plan(library, "cuda:0", text);
      expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                     {"NVIDIA L40S (compute capability 8.9) does not pass the known-answer test of "
                      "'quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row': a byte of the codes "
                      "is 0x",
                      "; no kernel is handed out for it"});
      EXPECT_EQ(std::string(octile_last_error()).find(repeated) == std::string::npos, is_first);
    }
  }
  EXPECT_THAT(launches(), SizeIs(1));
}

// Each of them is seen: a part of a kernel's name, and the problem that the sentence names.
TEST_F(Proofs, EveryQuantiserThatIsWrongIsSeen) {
  constexpr std::pair<const char*, const char*> kWrong[] = {
      {"_fp32_e4m3_128x128_pow2_both", "x=fp32 q=e4m3:128x128:pow2 out=both"},
      {"_bf16_e5m2_1x128_pow2_both", "x=bf16 q=e5m2:1x128:pow2 out=both"},
      {"_bf16_e4m3_row_f32_row", "x=bf16 q=e4m3:row out=row"},
      {"_bf16_e4m3_1x32_e8m0_both", "x=bf16 q=e4m3:1x32 out=both"},
      {"_bf16_e4m3_1x128_ue8m0x4_row", "x=bf16 q=e4m3:1x128:ue8m0x4 out=row"},
      {"octile_transpose", "transpose rows=? cols=256 x=e4m3:128x128 q=e4m3:128x128 out=col"},
      {"octile_dequantize", "dequantize rows=? cols=256 x=e4m3:1x128 q=bf16 out=row"}};
  for (const auto& [kernel, problem] : kWrong) {
    misbehave(std::string("wrong:") + kernel);
    const FakeDevice device("b200");
    const LibraryHandle library(cache_.path() + kernel);
    const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
    expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                   {problem, "; no kernel is handed out for it"});
  }
}

// A process that ends for another reason, or a machine that was stopped, condemns nothing.
class SecondTrial : public Proofs,
                    public ::testing::WithParamInterface<std::pair<const char*, std::size_t>> {};

TEST_P(SecondTrial, IsGivenToOneThatFails) {
  const auto [fault, launches_more] = GetParam();
  misbehave(fault);
  set("FAKE_CUDA_FAULT_ONCE", cache_.path() + ".once");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), HasSubstr("unit=mma_scaled"));
  EXPECT_THAT(warnings(library), IsEmpty());
  EXPECT_THAT(launches("octile_gemm"), SizeIs(kGemms + launches_more));
  EXPECT_THAT(kept(), SizeIs(kQuantisers + kGemms));
  expect_alive(device);
}

INSTANTIATE_TEST_SUITE_P(Of, SecondTrial,
                         ::testing::Values(std::pair("exit:_mma_scaled", 1),
                                           std::pair("refuse:_mma_scaled", 1),
                                           std::pair("image", 0)),
                         [](const auto& fault) {
                           const std::string text = fault.param.first;
                           return text.substr(0, text.find(':'));
                         });

// The next process may have a driver that takes it.
TEST_F(Proofs, ACubinThatIsRefusedForGoodIsNotKept) {
  misbehave("image");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                 {"CUDA_ERROR_INVALID_IMAGE", "; no kernel is handed out for it"});
  EXPECT_THAT(kept(), IsEmpty());
  misbehave("");
  const LibraryHandle next(cache_.path());
  const PlanHandle again = make_plan(next, "cuda:0", kQuantizeText);
  EXPECT_EQ(octile_plan_prepare(again.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
}

// Searches and benchmarks run kernels too.
TEST_F(Proofs, LeaveUnitsOutOfSessions) {
  misbehave("fault:_mma_scaled");
  const FakeDevice device("rtx5090");
  Library library(LibraryOptions{});
  const auto session = GpuSession::open(library, "cuda:0");
  ASSERT_TRUE(session) << session.error().message;
  EXPECT_EQ((*session)->spec().serving_unit(), MatrixUnit::kMma);
  misbehave("wrong:octile_quantize");
  Library other(LibraryOptions{});
  const auto refused = GpuSession::open(other, "cuda:0");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("no kernel is handed out for it"));
}

// A misdeed of a unit, and a part of the sentence about it.
struct Misdeed {
  const char* name;
  const char* fault;
  const char* sentence;
};
class Misdeeds : public Proofs, public ::testing::WithParamInterface<Misdeed> {};

TEST_P(Misdeeds, LeaveTheUnitOutAndNothingElse) {
  misbehave(std::string(GetParam().fault) + ":_mma_scaled");
  const FakeDevice device("rtx5090");
  for (int i = 0; i < 2; ++i) {
    const LibraryHandle library(cache_.path());
    EXPECT_THAT(configs_of_threads(library),
                Each(AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled")))));
    EXPECT_THAT(warnings(library),
                ElementsAre(AllOf(HasSubstr("(compute capability 12.0) does not pass the "
                                            "known-answer test of its matrix unit mma_scaled: "),
                                  HasSubstr(GetParam().sentence), HasSubstr("; no GEMM uses it"))));
  }
  // Whoever hangs or breaks a context has a second trial.
  const bool twice = !std::string_view(GetParam().fault).starts_with("wrong") &&
                     !std::string_view(GetParam().fault).starts_with("beyond");
  EXPECT_THAT(launches("octile_gemm"), SizeIs(twice ? 3 : 2));
  EXPECT_TRUE(no_prover_runs()) << "also none that hangs or is stopped";
  expect_alive(device);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Misdeeds,
    ::testing::Values(Misdeed{"Numbers", "wrong", "D[5][7] is "},
                      Misdeed{"Memory", "beyond", "it writes to the memory beside the tensors"},
                      Misdeed{"Hang", "hang", "it does not end within 10 s"},
                      Misdeed{"Stop", "stop", "it does not end within 10 s"},
                      Misdeed{"Context", "fault", "CUDA_ERROR_ILLEGAL_ADDRESS"}),
    [](const auto& misdeed) { return std::string(misdeed.param.name); });

// Somebody may have killed the process, as the system does if memory runs out, or the driver may
// not have taken the kernel at that moment. So the next process, and the next handle, tests again.
class Accidents : public Proofs, public ::testing::WithParamInterface<Misdeed> {};

TEST_P(Accidents, CondemnNoCardForGood) {
  const FakeDevice device("rtx5090");
  for (const bool is_first : {true, false}) {
    misbehave(is_first ? GetParam().fault : "");
    const LibraryHandle library(cache_.path());
    const std::vector<std::string> configs = configs_of_threads(library);
    if (is_first) {
      EXPECT_THAT(configs, Each(AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled")))));
      EXPECT_THAT(warnings(library), ElementsAre(HasSubstr(GetParam().sentence)));
    } else {
      EXPECT_THAT(configs, Each(HasSubstr("unit=mma_scaled")));
      EXPECT_THAT(warnings(library), IsEmpty());
    }
    for (const cache::Proof& proof : kept()) EXPECT_TRUE(proof.is_right()) << proof.wrong;
  }
  expect_alive(device);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Accidents,
    ::testing::Values(
        Misdeed{"Kill", "kill:_mma_scaled",
                "has no known-answer test; not used: matrix unit mma_scaled: the process of "
                "octile-prover that ran it ended"},
        Misdeed{"Exit", "exit:_mma_scaled",
                "has no known-answer test; not used: matrix unit mma_scaled: the process of "
                "octile-prover that ran it ended"},
        Misdeed{"Launch", "refuse:_mma_scaled",
                "does not pass the known-answer test of its matrix unit mma_scaled: "
                "cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE"},
        Misdeed{"Load", "load",
                "has no known-answer test; used without one: quantisers, matrix unit mma; not "
                "used: matrix unit mma_scaled: cuLibraryLoadData failed: "
                "CUDA_ERROR_INVALID_VALUE"}),
    [](const auto& accident) { return std::string(accident.param.name); });

// A process that forks while kernels are on trial keeps its test, and the child has none of it: it
// neither waits for octile-prover nor keeps it alive.
TEST_F(Proofs, AForkMeanwhileLeavesTheTestAlone) {
  misbehave("slow:octile");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  std::atomic<bool> ended = false;
  octile_status status = OCTILE_INTERNAL;
  std::jthread prepares([&] {
    status = octile_plan_prepare(plan.get(), 1, 64, 0);
    ended = true;
  });
  while (launches().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  int children = 0;
  for (; !ended; ++children) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(7);
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    EXPECT_EQ(WEXITSTATUS(how), 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  prepares.join();
  EXPECT_GT(children, 10);
  EXPECT_EQ(status, OCTILE_OK);
  EXPECT_THAT(config_of(plan), HasSubstr("unit=mma_scaled"));
  EXPECT_THAT(warnings(library), IsEmpty());
  EXPECT_THAT(kept(), SizeIs(kQuantisers + kGemms));
  expect_alive(device);
}

// A unit that multiplies scales of other rows is left out as one that multiplies wrong, and a
// problem of which no other unit has kernels is refused.
TEST_F(Proofs, ScalesInTheInstructionAreTestedToo) {
  misbehave("wrong:_pnone_");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled"))));
  EXPECT_THAT(warnings(library),
              ElementsAre(HasSubstr("does not pass the known-answer test of its matrix unit "
                                    "mma_scaled: with scales in the instruction D[5][7] is ")));
  const PlanHandle inside = make_plan(library, "cuda:0", kInsideText);
  expect_refused(octile_plan_prepare(inside.get(), 1, 1, 0), OCTILE_UNSUPPORTED,
                 {"no instruction multiplies block scales here"});
}

TEST_F(Proofs, NoGemmIsHandedOutIfAllUnitsAreWrong) {
  misbehave("wrong:octile_gemm");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                 {"matrix unit mma_scaled: D[5][7] is ", "no GEMM is handed out for it"});
  const PlanHandle quantize = make_plan(library, "cuda:0", kQuantizeText);
  EXPECT_EQ(octile_plan_prepare(quantize.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
}

TEST_F(Proofs, FewerBitsThanDescribedAreWrong) {
  set("FAKE_CUDA_SUM_BITS", "13");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_DEVICE_ERROR,
                 {"it keeps 13 bits of a sum, and 25 are taken for granted"});
}

TEST_F(Proofs, ProbesReadOffTheBits) {
  const FakeDevice device("rtx5090");
  Library library(LibraryOptions{});
  const auto target = resolve_target("cuda:0");
  ASSERT_TRUE(target);
  for (const auto& [bits, read] : {std::pair(13, 13), std::pair(18, 14), std::pair(25, 25)}) {
    set("FAKE_CUDA_SUM_BITS", std::to_string(bits));
    ProofRun run(library, *target, ProofRun::Earlier::kAreRepeated);
    const std::vector<UnitAnswer> answers = test_units(run, *target);
    ASSERT_EQ(answers.size(), 2U);
    for (const UnitAnswer& answer : answers) EXPECT_EQ(answer.sum_bits, read);
  }
}

// No card is known to compute right by tcgen05. It serves where a test has passed.
class Tcgen05 : public Proofs, public ::testing::WithParamInterface<const char*> {};

TEST_P(Tcgen05, ServesOnceItIsRight) {
  const std::string fault = GetParam();
  if (!fault.empty()) misbehave(fault + ":_tcgen05");
  const FakeDevice device("b200");
  for (int i = 0; i < 2; ++i) {
    const LibraryHandle library(cache_.path());
    const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(config_of(plan), HasSubstr(fault.empty() ? "unit=tcgen05" : "unit=mma"));
    EXPECT_THAT(warnings(library), SizeIs(fault.empty() ? 0 : 1));
    const PlanHandle inside = make_plan(library, "cuda:0", kInsideText);
    EXPECT_EQ(octile_plan_prepare(inside.get(), 4096, 4096, 0),
              fault.empty() ? OCTILE_OK : OCTILE_UNSUPPORTED);
    // FP8 D has no kernel of the other unit, and waits for the test.
    const PlanHandle fp8_d = make_plan(
        library, "cuda:0",
        "gemm m=? n=256 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128");
    const octile_status status = octile_plan_prepare(fp8_d.get(), 64, 64, 0);
    if (fault.empty()) {
      ASSERT_EQ(status, OCTILE_OK) << octile_last_error();
      EXPECT_THAT(config_of(fp8_d), HasSubstr("unit=tcgen05"));
    } else {
      expect_refused(status, OCTILE_UNSUPPORTED, {"only tcgen05 has kernels with FP8 D here"});
    }
  }
  // One GEMM of each unit, a second one of this one, which multiplies scales, and more, twenty
  // times each and three in a row.
  EXPECT_THAT(launches("octile_gemm"), SizeIs(fault.empty() ? 3 + kMoreForms * 20 * 3 : 2));
  if (!fault.empty()) return;
  // docs/support.md has the number of compiles. The three plans have kernels of their own.
  EXPECT_EQ(count_entries(), kQuantisers + 3 + kMoreForms + 3);
}

// Forms like the kernels that the cost model chooses: a part of the kernel's name, and what is said
// of a wrong D.
struct WrongForm {
  const char* name;
  const char* kernel;
  const char* sentence;
  bool is_of_scales = false;  // the unit's other kernels serve
};
class WrongForms : public Proofs, public ::testing::WithParamInterface<WrongForm> {};

TEST_P(WrongForms, AreSeen) {
  misbehave(std::string("wrong:") + GetParam().kernel);
  const FakeDevice device("b200");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), HasSubstr(GetParam().is_of_scales ? "unit=tcgen05" : "unit=mma"));
  EXPECT_THAT(warnings(library), ElementsAre(HasSubstr(GetParam().sentence)));
}

INSTANTIATE_TEST_SUITE_P(
    Of, WrongForms,
    ::testing::Values(
        WrongForm{"FourSlots", "_bf16_t128x128x128_s5_wg1_c1x1_u1f4_ras8_o1_tma_end_p128",
                  "tcgen05: with bf16 D D[5][7] is "},
        WrongForm{"Bias", "_fp16_biasfp32_sentry_t64x64x128_s12_wg1_c1x1_u1f4",
                  "tcgen05: with E5M2 A, a bias and fp16 D D[5][7] is "},
        WrongForm{"WeightGradient", "_fp32_acc_t128x128x128_s6_wg1_c1x1_u1f4",
                  "tcgen05: of a weight gradient D[5][7] is "},
        WrongForm{"GroupsOfK", "_bf16_acc_contiguous_t128x256x128_s4",
                  "tcgen05: of groups of tokens in K D[5][7] is "},
        WrongForm{"ContiguousGroups", "_bf16_contiguous_t64x112x128_s8_wg1_c1x1_u1f4",
                  "tcgen05: of contiguous groups D[5][7] is "},
        WrongForm{"MaskedGroups", "_bf16_masked_t128x224x128_s3_wg2_c2x1",
                  "tcgen05: of masked groups D[5][7] is "},
        WrongForm{"Batch", "_bf16_batch_t192x128x128_s3_wg3", "tcgen05: of a batch D[5][7] is "},
        WrongForm{"SplitK", "_bf16_t64x128x128_s8_wg1_c1x1_u1f4_ras8_o1_direct_end_p128_k4",
                  "tcgen05: with a split K D[5][7] is "},
        WrongForm{"FewRows", "_bf16_t16x96x128_s14_wg1_c1x1_u1f4",
                  "tcgen05: of few rows D[5][7] is "},
        WrongForm{"Tensors", "_e4m3_tensor_e4m3_tensor_bf16",
                  "tcgen05: with tensors' scales D[5][7] is "},
        WrongForm{"PackedScales", "_bf16_t128x128x128_s5_wg1_c1x1_u1f2_ras8_o1_tma_end_pnone",
                  "tcgen05 with scales in the instruction: with packed scales D[5][7] is ", true},
        WrongForm{"SquareMx", "_e4m3_1x32_e4m3_32x32_bf16",
                  "tcgen05 with scales in the instruction: with 32x32 blocks D[5][7] is ", true}),
    [](const auto& form) { return std::string(form.param.name); });

// The form with FP8 D compares codes and scales.
TEST_F(Proofs, AWrongCodeOrScaleOfDIsSeen) {
  constexpr std::pair<const char*, const char*> kFaults[] = {
      {"wrong", "with FP8 D the code D[5][7] is "},
      {"scale", "with FP8 D the scale of D's row 5 is "}};
  for (const auto& [fault, sentence] : kFaults) {
    misbehave(std::string(fault) + ":_e4m3_1x128_t");
    const FakeDevice device("b200");
    const LibraryHandle library(cache_.path() + fault);
    const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(config_of(plan), HasSubstr("unit=mma"));
    EXPECT_THAT(warnings(library), ElementsAre(HasSubstr(sentence)));
  }
}

// A wrong sum of scales in the instruction leaves the unit's other kernels in use.
TEST_F(Proofs, AWrongSumOfScalesInTensorMemoryIsSeen) {
  for (const char* kernel : {"_1x128_e4m3_128x128_fp32_t128x192", "_1x128_e4m3_1x128_fp32_t128x256",
                             "_1x32_e4m3_1x32_fp32_t256x128"}) {
    misbehave(std::string("wrong:") + kernel);
    const FakeDevice device("b200");
    const LibraryHandle library(cache_.path());
    const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(config_of(plan), HasSubstr("unit=tcgen05"));
    EXPECT_THAT(warnings(library),
                ElementsAre(HasSubstr("its matrix unit tcgen05 with scales in the instruction: "
                                      "D[5][7] is ")));
    const PlanHandle inside = make_plan(library, "cuda:0", kInsideText);
    expect_refused(octile_plan_prepare(inside.get(), 1, 1, 0), OCTILE_UNSUPPORTED,
                   {"once its tests with them have passed on the card"});
    forget_what_is_wrong();
  }
}

INSTANTIATE_TEST_SUITE_P(If, Tcgen05, ::testing::Values("", "wrong"), [](const auto& fault) {
  return *fault.param == '\0' ? std::string("Right") : fault.param;
});

TEST_F(Proofs, WithoutATestTcgen05IsNotUsed) {
  set("OCTILE_PROVER", "none");
  const FakeDevice device("b200");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), HasSubstr("unit=mma"));
  EXPECT_THAT(warnings(library), ElementsAre(HasSubstr("not used: matrix unit tcgen05: ")));
}

// Why nothing can be tested, and what the warning says of it.
struct Obstacle {
  const char* name;
  const char* variable;
  const char* value;
  const char* sentence;
};
class Obstacles : public Proofs, public ::testing::WithParamInterface<Obstacle> {};

constexpr const char* kNotTested =
    "has no known-answer test; used without one: quantisers, matrix unit mma; not used: matrix "
    "unit mma_scaled: ";

TEST_P(Obstacles, LeaveTheOldestUnitInUse) {
  set(GetParam().variable, GetParam().value);
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(configs_of_threads(library),
                Each(AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled")))));
  EXPECT_THAT(warnings(library),
              ElementsAre(AllOf(HasSubstr(kNotTested), HasSubstr(GetParam().sentence))));
  EXPECT_THAT(launches(), IsEmpty());
  EXPECT_THAT(kept(), IsEmpty()) << "the next process may be able to";
  EXPECT_TRUE(no_prover_runs());
  expect_alive(device);
}

// The kernels of the call are in the cache, and those of the tests are not.
TEST_F(Proofs, OfflineWithoutTheirKernelsThereAreNone) {
  set("OCTILE_PROVER", "none");
  const FakeDevice device("rtx5090");
  {
    const LibraryHandle library(cache_.path());
    configs_of_threads(library);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_.path() + "/v1"))
      if (entry.path().extension() == ".octile" &&
          text_of(entry.path()).find("gemm m=? n=256 k=384 ") == std::string::npos)
        std::filesystem::remove(entry.path());
  }
  ::unsetenv("OCTILE_PROVER");
  set("OCTILE_OFFLINE", "1");
  const LibraryHandle library(cache_.path());
  EXPECT_THAT(configs_of_threads(library),
              Each(AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled")))));
  EXPECT_THAT(warnings(library),
              ElementsAre(AllOf(HasSubstr(kNotTested), HasSubstr("offline forbids"))));
  EXPECT_THAT(kept(), IsEmpty());
  EXPECT_TRUE(no_prover_runs());
  expect_alive(device);
}

// No process can be started: the system refuses clone() here, in a child, as it does where a limit
// on processes is met.
TEST_F(Proofs, WithoutAProcessThereAreNone) {
  set("OCTILE_COMPILER", "in-process");
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(120);
    const FakeDevice device("rtx5090");
    if (!refuse_processes()) ::_exit(kSkipped);
    const LibraryHandle library(cache_.path());
    const std::vector<std::string> configs = configs_of_threads(library);
    const std::vector<std::string> said = warnings(library);
    expect_alive(device);
    const bool is_right =
        std::ranges::all_of(configs,
                            [](const std::string& config) {
                              return config.find("unit=mma") != std::string::npos &&
                                     config.find("unit=mma_scaled") == std::string::npos;
                            }) &&
        said.size() == 1 && said[0].find(kNotTested) != std::string::npos &&
        said[0].find("cannot be started: ") != std::string::npos && !HasFailure();
    for (const std::string& one : said) std::fprintf(stderr, "%s\n", one.c_str());
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(host, &status, 0), host);
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "no filter of system calls here";
  EXPECT_EQ(status, 0);
}

// Whatever a program calls its refusal, no kernel is loaded yet that could be to blame.
TEST_F(Proofs, ARefusalBeforeAnyKernelBlamesNone) {
  const std::string program = cache_.path() + ".prover";
  std::ofstream(program) << "#!/bin/sh\nprintf '\\026\\000\\000\\000\\007\\000\\000\\000refused"
                            "\\001\\000\\000\\0003\\002\\000\\000\\000no' >&0\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  set("OCTILE_PROVER", program);
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  EXPECT_THAT(configs_of_threads(library),
              Each(AllOf(HasSubstr("unit=mma"), Not(HasSubstr("unit=mma_scaled")))));
  EXPECT_THAT(warnings(library), ElementsAre(AllOf(HasSubstr(kNotTested), EndsWith(": no"))));
  EXPECT_THAT(kept(), IsEmpty());
  std::filesystem::remove(program);
  expect_alive(device);
}

// A card that was full when a server started is tested once it is not, and until then each prepare
// returns at once.
TEST_F(Proofs, AreTriedAgainLater) {
  misbehave("memory");
  const FakeDevice device("rtx5090");
  const LibraryHandle library(cache_.path());
  Library& internals = library.get()->library;
  internals.trusted_devices.set_first_pause(std::chrono::hours(1));
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  const auto prepare = [&](std::int64_t tokens) {
    ASSERT_EQ(octile_plan_prepare(plan.get(), tokens, tokens, 0), OCTILE_OK) << octile_last_error();
  };
  prepare(64);
  EXPECT_THAT(warnings(library), ElementsAre(HasSubstr(kNotTested)));
  misbehave("");
  prepare(256);
  EXPECT_THAT(launches(), IsEmpty()) << "the pause lasts";

  const LibraryHandle other(cache_.path());
  TrustedDevices& devices = other.get()->library.trusted_devices;
  devices.set_first_pause(std::chrono::milliseconds(0));
  misbehave("memory");
  const PlanHandle early = make_plan(other, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(early.get(), 64, 64, 0), OCTILE_OK) << octile_last_error();
  ASSERT_EQ(octile_plan_prepare(early.get(), 128, 128, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(warnings(other), ElementsAre(HasSubstr(kNotTested))) << "the same is said once";
  misbehave("");
  // The plan's next kernel, and other plans', are of the unit that has passed.
  ASSERT_EQ(octile_plan_prepare(early.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(describe(early.get()).dump(), HasSubstr("unit=mma_scaled"));
  EXPECT_THAT(configs_of_threads(other), Each(HasSubstr("unit=mma_scaled")));
  EXPECT_THAT(launches(), SizeIs(kQuantisers + kGemms));
  EXPECT_THAT(warnings(other), SizeIs(1));
  expect_alive(device);
}

// A root that is not read and not written is said once, and not for each test.
TEST_F(Proofs, ARefusedRootIsSaidOnce) {
  const FakeDevice device("rtx5090");
  std::filesystem::permissions(cache_.path(), std::filesystem::perms::all);
  const LibraryHandle library(cache_.path());
  EXPECT_THAT(configs_of_threads(library), Each(HasSubstr("unit=mma_scaled")));
  std::vector<std::string> of_tests = library.log.of(OCTILE_LOG_WARNING);
  std::erase_if(of_tests, [](const std::string& text) {
    return text.find("the tests of NVIDIA GeForce RTX 5090 are repeated") == std::string::npos;
  });
  EXPECT_THAT(of_tests, SizeIs(1));
}

// The host computes what is expected only of tests that run.
TEST_F(Proofs, RememberedOutcomesCostNoReference) {
  const FakeDevice device("b200");
  LibraryOptions options;
  options.engine.writable_root = cache_.path();
  Library library(std::move(options));
  const auto target = resolve_target("cuda:0");
  ASSERT_TRUE(target);
  int computed = 0;
  const auto test = [&] {
    ProofRun run(library, *target, ProofRun::Earlier::kCount);
    const auto problem = *problem_as<QuantizeProblem>(*parse_problem(kQuantizeText));
    const std::vector<std::uint8_t> given(1 << 20);
    return run.test(
        "quantisers", problem, default_config(problem, 1, target->spec), target->spec, given,
        [&]() -> Status {
          ++computed;
          return {};
        },
        1,
        [](void* base) {
          constexpr std::size_t kApart = std::size_t{64} << 10;
          QuantizeArguments row;
          row.rows = 1;
          row.x = placed(base, 0);
          row.q = placed(base, kApart);
          row.scale = placed(base, 2 * kApart);
          return row;
        },
        [](const std::vector<std::uint8_t>&) -> Result<int> { return 0; });
  };
  EXPECT_EQ(test().kind, Answer::Kind::kRight);
  const Answer again = test();
  EXPECT_EQ(again.kind, Answer::Kind::kRight);
  EXPECT_TRUE(again.is_remembered);
  EXPECT_EQ(computed, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Obstacles,
    ::testing::Values(
        Obstacle{"ComputeMode", "FAKE_CUDA_COMPUTE_MODE", "3",
                 "its compute mode is EXCLUSIVE_PROCESS, in which no second process has a context; "
                 "`nvidia-smi --compute-mode=DEFAULT` allows one"},
        Obstacle{"Service", "FAKE_CUDA_MPS", "1", "a multi-process service (MPS)"},
        Obstacle{"Memory", "FAKE_CUDA_FAULT", "memory", "CUDA_ERROR_OUT_OF_MEMORY"},
        Obstacle{"Context", "FAKE_CUDA_FAULT", "context", "cuDevicePrimaryCtxRetain failed"},
        Obstacle{"Wish", "OCTILE_PROVER", "none", "OCTILE_PROVER is none"},
        Obstacle{"NoProgram", "OCTILE_PROVER", "/nowhere/octile-prover",
                 "\"/nowhere/octile-prover\" cannot be started: No such file"},
        Obstacle{"OtherProgram", "OCTILE_PROVER", "/bin/true", "does not say that it runs"}),
    [](const auto& obstacle) { return std::string(obstacle.param.name); });

// Verdicts of earlier processes serve one that can test nothing.
TEST_F(Proofs, ServeAProcessThatCannotTest) {
  const FakeDevice device("rtx5090");
  for (const char* prover : {"", "none"}) {
    if (*prover != '\0') set("OCTILE_PROVER", prover);
    const LibraryHandle library(cache_.path());
    const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
    ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 64, 0), OCTILE_OK) << octile_last_error();
    EXPECT_THAT(config_of(plan), HasSubstr("unit=mma_scaled"));
    EXPECT_THAT(warnings(library), IsEmpty());
  }
}

// `octile compile` for a card that is tested compiles the kernels of its tests too, so that a
// machine that compiles nothing proves its units.
TEST_F(Proofs, RunFromACacheThatWasCompiledAhead) {
  set("OCTILE_CACHE_DIR", cache_.path());
  const auto command_line = tools::new_command_line("", "");
  const tools::Command command = tools::add_compile(*command_line);
  const std::array words{"octile",    "compile",         "--json",   "--device", "b200",
                         "--problem", kGemmText.c_str(), "--tokens", "4096:4096"};
  ASSERT_TRUE(tools::parse(*command_line, static_cast<int>(words.size()), words.data()));
  ::testing::internal::CaptureStdout();
  const Result<int> status = command.run();
  const auto summary = nlohmann::json::parse(::testing::internal::GetCapturedStdout());
  ASSERT_TRUE(status && *status == 0);
  std::size_t tested = 0;
  for (const auto& kernel : summary.at("kernels"))
    tested += kernel.at("tested").get<bool>() ? 1U : 0U;
  EXPECT_EQ(tested, kQuantisers + kGemms + kMoreForms);

  set("OCTILE_OFFLINE", "1");
  const FakeDevice device("b200");
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 4096, 4096, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(config_of(plan), HasSubstr("unit=tcgen05"));
  EXPECT_THAT(warnings(library), IsEmpty());
  EXPECT_THAT(kept(), SizeIs(kQuantisers + kGemms + kMoreForms));
}

TEST_F(Proofs, ADamagedFileIsSaidAndReplaced) {
  const FakeDevice device("rtx5090");
  const std::string path = kept_of_first().path();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "{\"version\":1,\"proofs\":[{}]}";
  const LibraryHandle library(cache_.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(library.log.of(OCTILE_LOG_WARNING),
              Contains(AllOf(HasSubstr("the tests of NVIDIA GeForce RTX 5090 are repeated: "),
                             HasSubstr(path), HasSubstr("field 'device' is not a string"))));
  EXPECT_THAT(launches(), SizeIs(kQuantisers + kGemms));
  EXPECT_THAT(kept(), SizeIs(kQuantisers + kGemms));
}

// The program does nothing for whoever starts it by hand.
TEST_F(Proofs, TheProgramSaysWhatItIsFor) {
  const auto program = prover_program();
  ASSERT_TRUE(program) << program.error();
  FILE* const said = ::popen((*program + " libcuda.so.1 2>&1 </dev/null").c_str(), "r");
  std::string text(200, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), said));
  EXPECT_EQ(WEXITSTATUS(::pclose(said)), 2);
  EXPECT_THAT(text, HasSubstr("the Octile library starts this program to test kernels"));
}

}  // namespace
}  // namespace octile::test
