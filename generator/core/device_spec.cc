#include "generator/core/device_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "generator/core/ascii.h"
#include "generator/core/cuda_release.h"
#include "generator/core/sum_bits.h"

namespace octile {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr int kKiB = 1024;

// ---- what compute capabilities decide

// A row of the CUDA C++ Programming Guide's tables of features and technical specifications. All
// have 65,536 registers an SM.
struct Capability {
  int major, minor;
  std::array<MatrixUnit, 2> units;
  std::size_t unit_count;
  bool has_tma, has_multicast, has_setmaxnreg;  // clusters, PDL and min.u16x2 came with TMA
  int threads_per_sm, blocks_per_sm, smem_per_sm_kib;
  std::array<SumPrecision, 2> sums;  // of the units, by MMA-Sim's models of tensor cores
  // Operations of the second unit over those of the first. mma.sync of FP8 is emulated by that of
  // FP16 on 9.0 and 10.x (ptxas). On 12.x it runs at half the rate of block_scale, as GeForce cards
  // showed.
  double second_rate;
  CudaRelease nvrtc;  // the first that compiles for it (CUDA's release notes)
};

using enum MatrixUnit;
constexpr SumPrecision kAda{13, 16}, kHopper{13, 32}, kBlackwell{25, 32};
constexpr SumPrecision kOfHalves{25, 16};  // mma.sync of FP8 by that of FP16
constexpr int kRegistersPerSm = 65536;
constexpr Capability with_minor(Capability of, int minor, CudaRelease nvrtc) {
  of.minor = minor;
  of.nvrtc = nvrtc;
  return of;
}
constexpr std::array<SumPrecision, 2> kSums90{kHopper, kOfHalves};
constexpr std::array<SumPrecision, 2> kSums100{kBlackwell, kOfHalves};
constexpr std::array<SumPrecision, 2> kSums120{kBlackwell, kBlackwell};
constexpr Capability kBlackwell100{10, 0,   {kTcgen05, kMma}, 2,     true,   true, true, 2048,
                                   32, 228, kSums100,         0.125, {12, 8}};
constexpr Capability kBlackwell120{12, 0,   {kMmaScaled, kMma}, 2,   true,   false, true, 1536,
                                   24, 100, kSums120,           0.5, {12, 8}};
constexpr std::array kCapabilities{
    Capability{8, 0, {}, 0, false, false, false, 2048, 32, 164, {}, 0, {11, 0}},
    Capability{8, 6, {}, 0, false, false, false, 1536, 16, 100, {}, 0, {11, 1}},
    Capability{8, 9, {kMma}, 1, false, false, false, 1536, 24, 100, {kAda}, 0, {11, 8}},
    Capability{9, 0, {kWgmma, kMma}, 2, true, true, true, 2048, 32, 228, kSums90, 0.5, {12, 0}},
    kBlackwell100,
    with_minor(kBlackwell100, 3, {12, 9}),
    kBlackwell120,
    with_minor(kBlackwell120, 1, {12, 9}),
};

// Returns the row of the capability; nullptr if it has none.
const Capability* find_capability(int major, int minor) {
  const auto it = std::ranges::find_if(
      kCapabilities, [&](const Capability& c) { return c.major == major && c.minor == minor; });
  return it == kCapabilities.end() ? nullptr : &*it;
}

// The suffix 'a' enables the architecture-specific features: WGMMA and setmaxnreg are only in
// sm_90a.
std::string arch_of(int major, int minor) {
  return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

// ---- known cards

// The datasheet's 1979 dense FP8 TFLOP/s over 132 SMs x 8192 flop per cycle. The boost limit is
// 1.98 GHz; large GEMMs run below both, at the power cap.
constexpr double kHopperClockGhz = 1.83;

// The time of an empty kernel as a node of a CUDA graph, measured on an H200 and taken for all.
constexpr double kLaunchUs = 0.55;

// Fitted to 228 GEMM configurations on an H200: 132 SMs that read the same tiles together read up
// to 10.8 TB/s from L2. They read 5 to 6.4 TB/s if all lines are distinct.
constexpr double kL2TbpsPerSm = 10.8 / 132;
// Bytes that L2 is taken to send an SM of the other architectures in a cycle.
constexpr double kL2BytesPerCycle = 16;

// A card's figures in its datasheet.
struct Datasheet {
  std::string_view name, full_name;
  int sm_major, sm_minor, sm_count;
  std::int64_t l2_mib;
  double clock_ghz, fp8_tflops, dram_tbps, dram_gb;
};

// Returns a card that was not measured.
DeviceSpec described_by(const Datasheet& sheet) {
  DeviceSpec d = with_capability({}, sheet.sm_major, sheet.sm_minor);
  d.name = sheet.name;
  d.full_name = sheet.full_name;
  d.sm_count = sheet.sm_count;
  d.l2_bytes = sheet.l2_mib * kMiB;
  d.clock_ghz = sheet.clock_ghz;
  d.fp8_tflops = sheet.fp8_tflops;
  d.dram_tbps = sheet.dram_tbps;
  d.dram_gb = sheet.dram_gb;
  d.l2_tbps = d.has_multicast ? sheet.sm_count * kL2TbpsPerSm
                              : sheet.sm_count * sheet.clock_ghz * kL2BytesPerCycle * 1e-3;
  d.launch_us = kLaunchUs;
  return d;
}

// Dense FP8 rates with fp32 sums. H200, H100 and H20: datasheets (with sparsity twice as much); the
// H100's 50 MiB of L2: architecture whitepaper. L4, L40S, RTX 6000 Ada: datasheets. RTX 4090: Ada
// whitepaper, appendix A, which halves the rate of fp32 sums. RTX 5090 and RTX PRO 6000: Blackwell
// whitepapers; the rate is that of block_scale. B200, B300: HGX datasheets; they give no clock, so
// it is the rate's over 16384 flop an SM and cycle, and memory of eight cards.
constexpr std::array kDatasheets = std::to_array<Datasheet>({
    {"h200", "NVIDIA H200", 9, 0, 132, 60, kHopperClockGhz, 1979, 4.8, 141},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 50, kHopperClockGhz, 1979, 3.35, 80},
    {"h20", "NVIDIA H20", 9, 0, 78, 60, kHopperClockGhz, 296, 4.0, 96},
    {"l4", "NVIDIA L4", 8, 9, 58, 48, 2.04, 242, 0.3, 24},
    {"l40s", "NVIDIA L40S", 8, 9, 142, 96, 2.52, 733, 0.864, 48},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 72, 2.52, 330.3, 1.008, 24},
    {"rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 96, 2.505, 728.5, 0.96, 48},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 96, 2.407, 838, 1.792, 32},
    {"rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 12, 0, 188, 128, 2.6, 1000,
     1.792, 96},
    {"b200", "NVIDIA B200", 10, 0, 148, 126, 1.86, 4500, 7.7, 180},
    {"b300", "NVIDIA B300", 10, 3, 148, 126, 1.86, 4500, 7.7, 270},
});

// Puts measurements in the place of the datasheets' figures.
void add_measurements(DeviceSpec& d) {
  if (d.name == "h200") {
    d.dram_tbps = 4.3;  // read mostly
    d.is_measured = true;
  }
  if (d.name == "h100") {
    // The cost model explains by this stream the products of one token with weights of 80 MB and
    // more in eleven searches: they read 2.89 to 3.04 TB/s.
    d.dram_tbps = 3.12;
    d.cluster_factor = 1.03;  // fitted to 168 searches (docs/experiments/cost_model.md)
    d.is_measured = true;
  }
}

const std::vector<DeviceSpec>& devices() {
  static const std::vector<DeviceSpec> table = [] {
    std::vector<DeviceSpec> all;
    for (const Datasheet& sheet : kDatasheets) {
      all.push_back(described_by(sheet));
      add_measurements(all.back());
    }
    return all;
  }();
  return table;
}

// Cards whose owners may ask for them, with ten times the compute capability.
constexpr auto kOlderCards = std::to_array<std::pair<std::string_view, int>>({
    {"v100", 70},
    {"t4", 75},
    {"a100", 80},
    {"a30", 80},
    {"a10", 86},
    {"a40", 86},
    {"rtxa6000", 86},
    {"rtx3080", 86},
    {"rtx3090", 86},
});

// ---- names

// Returns the lower-case words of a name.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (is_letter_or_digit(c)) {
      words.back() += to_lower(c);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

// Returns true if words that follow each other make up the name: "rtx", "4090".
bool has_run(const std::vector<std::string>& words, std::string_view name) {
  for (std::size_t first = 0; first < words.size(); ++first) {
    std::string run;
    for (std::size_t i = first; i < words.size() && run.size() < name.size(); ++i) run += words[i];
    if (run == name) return true;
  }
  return false;
}

}  // namespace

bool DeviceSpec::is_unused(MatrixUnit unit) const {
  return std::ranges::find(unused_units, unit) != unused_units.end();
}

DeviceSpec DeviceSpec::with_all_units() const {
  DeviceSpec device = *this;
  device.unused_units.clear();
  device.has_unused_scales = false;
  return device;
}

bool DeviceSpec::multiplies_scales(MatrixUnit unit) const {
  return !is_unused(unit) && (unit == kMmaScaled || (unit == kTcgen05 && !has_unused_scales));
}

bool DeviceSpec::has_unit(MatrixUnit unit) const {
  return std::ranges::find(units, unit) != units.end();
}

std::optional<MatrixUnit> DeviceSpec::default_unit() const {
  return units.empty() ? std::nullopt : std::optional(units.front());
}

std::optional<MatrixUnit> DeviceSpec::serving_unit() const {
  const auto it = std::ranges::find_if(units, [&](MatrixUnit unit) { return !is_unused(unit); });
  return it == units.end() ? std::nullopt : std::optional(*it);
}

double DeviceSpec::flops_per_cycle(MatrixUnit unit) const {
  if (!has_unit(unit)) return 0;
  const double first = std::exp2(std::round(std::log2(fp8_tflops * 1e3 / (sm_count * clock_ghz))));
  const Capability* const row = find_capability(sm_major, sm_minor);
  return row == nullptr || unit == row->units.front() ? first : first * row->second_rate;
}

SumPrecision sum_precision(const DeviceSpec& device, MatrixUnit unit) {
  const Capability* row = find_capability(device.sm_major, device.sm_minor);
  if (row == nullptr || !device.has_unit(unit)) return {};
  return row->sums.at(unit == row->units.front() ? 0 : 1);
}

int sum_bits(const DeviceSpec& device, MatrixUnit unit) { return sum_precision(device, unit).bits; }

SumPrecision coarsest_sums(const DeviceSpec& device) {
  if (device.units.empty()) return {};
  SumPrecision coarsest = sum_precision(device, device.units.front());
  for (const MatrixUnit unit : device.units) {
    coarsest = std::min(coarsest, sum_precision(device, unit));
  }
  return coarsest;
}

int DeviceSpec::sum_bits() const {
  return units.empty() ? kFewestSumBits : octile::sum_bits(*this, units.front());
}

std::string DeviceSpec::arch() const { return arch_of(sm_major, sm_minor); }

CudaRelease first_nvrtc(std::string_view arch) {
  const auto it = std::ranges::find(kCapabilities, arch,
                                    [](const Capability& c) { return arch_of(c.major, c.minor); });
  return it == kCapabilities.end() ? CudaRelease{} : it->nvrtc;
}

std::string DeviceSpec::capability() const { return fmt::format("{}.{}", sm_major, sm_minor); }

DeviceSpec with_capability(DeviceSpec device, int sm_major, int sm_minor) {
  device.sm_major = sm_major;
  device.sm_minor = sm_minor;
  device.registers_per_sm = kRegistersPerSm;
  device.is_proven = sm_major == 9;
  const Capability* const row = find_capability(sm_major, sm_minor);
  if (row == nullptr) return device;
  device.units.assign(row->units.begin(), row->units.begin() + row->unit_count);
  if (device.has_unit(kTcgen05)) {
    device.unused_units = {kTcgen05};
    device.has_unused_scales = true;
  }
  device.has_tma = device.has_clusters = device.has_pdl = device.has_u16x2 = row->has_tma;
  device.has_multicast = row->has_multicast;
  device.has_setmaxnreg = row->has_setmaxnreg;
  device.threads_per_sm = row->threads_per_sm;
  device.blocks_per_sm = row->blocks_per_sm;
  device.smem_per_sm_bytes = row->smem_per_sm_kib * kKiB;
  device.max_smem_per_block_bytes = device.smem_per_sm_bytes - kReservedSmemPerBlock;
  return device;
}

// cuOccupancyMaxActiveClusters on an H200 of 132 SMs: 66 clusters of two thread blocks, 39 of
// three, 30 of four, 15 of eight.
int sms_in_clusters(int cluster_size, int sm_count) {
  constexpr int kSms = 132;
  const int reached = cluster_size <= 2 ? kSms : cluster_size == 3 ? 117 : 120;
  return sm_count * reached / kSms;
}

std::span<const DeviceSpec> known_devices() { return devices(); }

const DeviceSpec* find_device(std::string_view name) {
  std::string key;
  for (const std::string& word : words_of(name)) {
    if (word != "nvidia" && word != "geforce") key += word;
  }
  const auto it = std::ranges::find(devices(), key, &DeviceSpec::name);
  return it == devices().end() ? nullptr : &*it;
}

std::string older_capability(std::string_view name) {
  std::string key;
  for (const std::string& word : words_of(name)) {
    if (word != "nvidia" && word != "geforce") key += word;
  }
  const auto it = std::ranges::find(kOlderCards, key, &std::pair<std::string_view, int>::first);
  int number = it == kOlderCards.end() ? 0 : it->second;
  if (key.starts_with("sm")) std::from_chars(key.data() + 2, key.data() + key.size(), number);
  constexpr int kOldest = 89;
  if (number < 10 || number >= kOldest) return {};
  return fmt::format("{}.{}", number / 10, number % 10);
}

const DeviceSpec* find_named(std::string_view driver_name) {
  const std::vector<std::string> words = words_of(driver_name);
  const auto it =
      std::ranges::find_if(devices(), [&](const DeviceSpec& d) { return has_run(words, d.name); });
  return it == devices().end() ? nullptr : &*it;
}

}  // namespace octile
