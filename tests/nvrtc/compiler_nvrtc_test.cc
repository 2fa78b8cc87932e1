#include <elf.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/compiler/cubin.h"
#include "runtime/compiler/nvrtc.h"

namespace octile {
namespace {

const std::vector<std::string> kOptions{"--gpu-architecture=sm_90a", "--std=c++17"};

const Nvrtc& nvrtc() {
  static const auto opened = Nvrtc::open();
  if (!opened) {
    ADD_FAILURE() << opened.error().message;
    std::abort();
  }
  return **opened;
}

Result<CompileOutput> compile(const std::string& source) {
  return nvrtc().compile("test.cu", source, kOptions);
}

constexpr const char* kSmall = R"(
struct Arguments { long long a; int b[5]; };
extern "C" __global__ void __launch_bounds__(128) small(float* x, int n, Arguments p) {
  __shared__ float s[64];
  s[threadIdx.x % 64] = x[threadIdx.x];
  __syncthreads();
  if (n > 3) x[threadIdx.x] = s[(threadIdx.x + 1) % 64] * p.b[2] + p.a;
})";

// 96 values per thread are live at once, but the launch bounds leave 32 registers.
constexpr const char* kSpilling = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x, int n) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; i++) v[i] = x[i * 1024 + threadIdx.x];
  for (int j = 0; j < n; j++) {
#pragma unroll
    for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i * 7 + 1) % 96] + x[j];
  }
#pragma unroll
  for (int i = 0; i < 96; i++) x[i * 1024 + threadIdx.x] = v[i];
})";

TEST(Nvrtc, SaysWhatItIs) {
  EXPECT_GE(nvrtc().identity().major, 12);
  EXPECT_TRUE(nvrtc().identity().version_text().starts_with("nvrtc "));
  const auto folder_of = [](const std::string& path) { return path.substr(0, path.rfind('/')); };
  EXPECT_EQ(folder_of(nvrtc().identity().builtins_path), folder_of(nvrtc().identity().path));
  const std::string digest = nvrtc().identity().build_digest().value();
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(nvrtc().identity().build_digest().value(), digest);
}

TEST(Nvrtc, IsOpenedOncePerPath) {
  const std::string path = nvrtc().identity().path;
  EXPECT_EQ(Nvrtc::open(path).value(), Nvrtc::open(path).value());
}

TEST(Nvrtc, ReportsResources) {
  const auto output = compile(kSmall);
  ASSERT_TRUE(output) << output.error().message;
  const KernelResources* kernel = output->find("small");
  ASSERT_NE(kernel, nullptr);
  EXPECT_GT(kernel->registers, 0);
  EXPECT_LE(kernel->registers, 255);
  EXPECT_EQ(kernel->spill_store_bytes, 0);
  EXPECT_EQ(kernel->spill_load_bytes, 0);
  EXPECT_EQ(kernel->stack_bytes, 0);
  EXPECT_EQ(kernel->static_smem_bytes, 256);
  EXPECT_EQ(kernel->max_threads, 128);
  EXPECT_EQ(kernel->parameter_bytes, (std::vector<int>{8, 4, 32}));
  EXPECT_TRUE(output->warnings.empty());
  EXPECT_GT(output->compile_ms, 0);
  EXPECT_EQ(output->find("absent"), nullptr);
}

TEST(Nvrtc, CompilesToTheSameBytes) { EXPECT_EQ(compile(kSmall)->cubin, compile(kSmall)->cubin); }

TEST(Nvrtc, ReportsSpills) {
  const auto output = compile(kSpilling);
  ASSERT_TRUE(output) << output.error().message;
  const KernelResources* kernel = output->find("spilling");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->registers, 32);
  EXPECT_GT(kernel->spill_store_bytes, 0);
  EXPECT_GT(kernel->spill_load_bytes, 0);
  EXPECT_GT(kernel->stack_bytes, 0);
}

TEST(Nvrtc, AnErrorNamesTheTemplateLine) {
  const auto output = compile(
      "#line 77 \"gemm/foo.cu\"\n"
      "extern \"C\" __global__ void m(float* x) { x[0] = undefined_thing; }\n");
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kCompileFailed);
  EXPECT_NE(output.error().message.find("gemm/foo.cu(77): error"), std::string::npos)
      << output.error().message;
}

TEST(Nvrtc, AWarningIsReported) {
  const auto output = compile("extern \"C\" __global__ void m(float* x) { int unused; x[0] = 1; }");
  ASSERT_TRUE(output) << output.error().message;
  ASSERT_EQ(output->warnings.size(), 1U);
  EXPECT_NE(output->warnings[0].find("test.cu(1)"), std::string::npos);
  EXPECT_TRUE(output->lost_schedules.empty());
}

// Without launch bounds ptxas does not know the register count at entry: C7508.
TEST(Nvrtc, AnIgnoredSetmaxnregIsALostSchedule) {
  const auto output = compile(
      "extern \"C\" __global__ void m(float* x) {\n"
      "  asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\");\n"
      "  x[threadIdx.x] = 1;\n}");
  ASSERT_TRUE(output) << output.error().message;
  ASSERT_EQ(output->lost_schedules.size(), 1U) << output->log;
  EXPECT_NE(output->lost_schedules[0].find("setmaxnreg"), std::string::npos);
}

// A WGMMA with 128 accumulators exceeds the 64 registers that 1024 threads leave: C7602.
TEST(Nvrtc, TooFewRegistersHaveTheirOwnSentence) {
  std::string placeholders;
  std::string operands;
  for (int i = 0; i < 128; ++i) {
    placeholders += (i == 0 ? "%" : ", %") + std::to_string(i);
    operands += (i == 0 ? "\"+f\"(r[" : ", \"+f\"(r[") + std::to_string(i) + "])";
  }
  const auto output = compile(
      "extern \"C\" __global__ void __launch_bounds__(1024, 1) m(float* x) {\n"
      "  float r[128];\n"
      "  for (int i = 0; i < 128; i++) r[i] = x[i];\n"
      "  asm volatile(\"wgmma.fence.sync.aligned;\");\n"
      "  asm volatile(\"wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" +
      placeholders + "}, %128, %129, 1, 1, 1;\" : " + operands +
      " : \"l\"(1ull), \"l\"(2ull));\n"
      "  asm volatile(\"wgmma.commit_group.sync.aligned;\");\n"
      "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\");\n"
      "  for (int i = 0; i < 128; i++) x[i] = r[i];\n}");
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kCompileFailed);
  EXPECT_NE(output.error().message.find("more registers than its launch bounds leave"),
            std::string::npos)
      << output.error().message;
}

TEST(Nvrtc, AnUnknownOptionIsAnError) {
  const std::vector<std::string> options{"--gpu-architecture=sm_90a", "--no-such-option"};
  const auto output = nvrtc().compile("test.cu", kSmall, options);
  ASSERT_FALSE(output);
  EXPECT_NE(output.error().message.find("no-such-option"), std::string::npos);
}

TEST(Nvrtc, AVirtualArchitectureGivesNoCubin) {
  const std::vector<std::string> options{"--gpu-architecture=compute_90a"};
  const auto output = nvrtc().compile("test.cu", kSmall, options);
  ASSERT_FALSE(output);
  EXPECT_NE(output.error().message.find("architecture"), std::string::npos);
}

TEST(Nvrtc, CompilesInSeveralThreads) {
  const std::vector<std::uint8_t> expected = compile(kSmall)->cubin;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::uint8_t>> cubins(4);
  for (std::vector<std::uint8_t>& cubin : cubins)
    threads.emplace_back([&cubin] {
      const auto output = compile(kSmall);
      if (output) cubin = output->cubin;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::uint8_t>& cubin : cubins) EXPECT_EQ(cubin, expected);
}

TEST(NvrtcOpen, SaysWhatIsMissing) {
  const auto absent = Nvrtc::open("/nowhere/libnvrtc.so");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNoCompiler);
  EXPECT_NE(absent.error().message.find("/nowhere/libnvrtc.so"), std::string::npos);

  const auto other = Nvrtc::open("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("is not NVRTC"), std::string::npos);
}

TEST(NvrtcOpen, TheEnvironmentIsBinding) {
  setenv("OCTILE_LIBNVRTC", "/nowhere/libnvrtc.so", 1);
  const auto opened = Nvrtc::open();
  unsetenv("OCTILE_LIBNVRTC");
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("/nowhere/libnvrtc.so"), std::string::npos);
}

// ---- the cubin reader, on bytes made here -------------------------------------------------------

TEST(Cubin, ValidatesWhatItIsAskedFor) {
  const auto output = compile(kSmall);
  ASSERT_TRUE(output);
  const std::vector<int> parameters{8, 4, 32};
  EXPECT_TRUE(validate_cubin(output->cubin, "sm_90a", "small", parameters));
  EXPECT_NE(validate_cubin(output->cubin, "sm_100a", "small", parameters)
                .error()
                .message.find("sm_90, sm_100a expected"),
            std::string::npos);
  EXPECT_NE(validate_cubin(output->cubin, "sm_90a", "large", parameters)
                .error()
                .message.find("no kernel large"),
            std::string::npos);
  const std::vector<int> others{8, 4};
  EXPECT_NE(
      validate_cubin(output->cubin, "sm_90a", "small", others).error().message.find("8, 4, 32"),
      std::string::npos);
}

TEST(Cubin, ReadsParameterOffsets) {
  const auto info = read_cubin(compile(kSmall)->cubin);
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->sm, 90);
  const CubinKernel* kernel = info->find("small");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->parameters, (std::vector<CubinParameter>{{0, 8}, {8, 4}, {16, 32}}));
}

// NVRTC 12.8 gives cubins of sm_90a version 7 of the ABI and the flags 0x5a0d5a, NVRTC 13.0 version
// 8 and 0x6005a04.
TEST(Cubin, ReadsTheArchitectureOfEitherVersionOfTheAbi) {
  std::vector<std::uint8_t> bytes = compile(kSmall)->cubin;
  const std::vector<int> parameters{8, 4, 32};
  const auto set = [&bytes](std::uint8_t version, std::uint32_t flags) {
    bytes[EI_ABIVERSION] = version;
    std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_flags), &flags, sizeof(flags));
  };
  set(7, 0x5a0d5a);
  EXPECT_EQ(read_cubin(bytes)->sm, 90);
  EXPECT_TRUE(validate_cubin(bytes, "sm_90a", "small", parameters));
  set(8, 0x6005a04);
  EXPECT_EQ(read_cubin(bytes)->sm, 90);
  set(7, 0x500550);
  EXPECT_EQ(read_cubin(bytes)->sm, 80);
  EXPECT_FALSE(validate_cubin(bytes, "sm_90a", "small", parameters));
}

TEST(Cubin, EveryTruncationIsRefusedOrHarmless) {
  const std::vector<std::uint8_t> whole = compile(kSmall)->cubin;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    // The copy has its own size, so that AddressSanitizer reports any read behind it.
    const std::vector<std::uint8_t> cut(whole.begin(),
                                        whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    const auto info = read_cubin(cut);
    if (!info) {
      EXPECT_EQ(info.error().code, ErrorCode::kInternal);
    }
  }
  EXPECT_FALSE(read_cubin(std::span(whole).first(63)));
  EXPECT_FALSE(read_cubin({}));
}

TEST(Cubin, EveryFlippedBitIsSurvived) {
  std::vector<std::uint8_t> bytes = compile(kSmall)->cubin;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (const int bit : {0, 3, 7}) {
      const auto mask = static_cast<std::uint8_t>(1 << bit);
      bytes[i] ^= mask;
      const auto info = read_cubin(bytes);
      if (info) {
        EXPECT_LE(info->kernels.size(), 1U);
      }
      bytes[i] ^= mask;
    }
  EXPECT_TRUE(read_cubin(bytes));
}

}  // namespace
}  // namespace octile
