// A loss of power at every moment. Each test records the changes of files that one piece of work
// makes, and replays every state of the disk that a crash may leave (tests/support/crash_disk.h):
// what was there before is served, or what was put; what a call had promised is there; never a
// wrong kernel, and no state that the next process does not mend.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "cache/measured_device.h"
#include "cache/memo_file.h"
#include "cache/proofs.h"
#include "cache/statistics.h"
#include "cache/tuning_file.h"
#include "tests/support/cache_testing.h"
#include "tests/support/crash_disk.h"
#include "tests/support/tuning_testing.h"
#include "tools/cache/archive_input.h"
#include "tools/cache/archive_writer.h"

namespace octile::cache {
namespace {

using namespace testing;
using Kind = DiskChange::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One piece of work on a disk, and what has to be true of the disk afterwards.
struct Work {
  std::string name;
  std::function<void(const std::string& disk)> before;
  std::function<void(const std::string& disk, const std::shared_ptr<Recorder>& ops)> work;
  CrashCheck check;
};

StoreOptions options_for(const std::string& disk, std::shared_ptr<FileOps> ops = nullptr) {
  StoreOptions options;
  options.writable_root = disk + "/root";
  options.file_ops = std::move(ops);
  return options;
}

std::shared_ptr<FileOps> without_flushing() {  // the checks themselves need to survive nothing
  return std::make_shared<HookedOps>([](Op) { return std::nullopt; });
}

// Makes what dead processes left two hours old, so that the next one removes it.
void age(const std::string& disk) {
  const timespec then{std::time(nullptr) - 7200, 0};
  const timespec times[] = {then, then};
  for (const std::string& path : files_ending(disk, ".tmp"))
    ::utimensat(AT_FDCWD, path.c_str(), times, 0);
}

std::string expect_no_temporaries(const std::string& disk) {
  const auto left = files_ending(disk, ".tmp");
  return left.empty() ? "" : "left behind: " + left.front();
}

// Looks an entry up. Returns a complaint unless it is one of `allowed`, or missing if `may_miss`.
std::string look_up(Store& store, const std::vector<Entry>& allowed, bool may_miss) {
  const auto hit = store.lookup(allowed.front().identity, allowed.front().toolchain);
  if (!hit) return may_miss ? "" : "an entry is lost";
  for (const Entry& entry : allowed) {
    if (hit->entry == entry) return "";
  }
  return "a wrong entry";
}

// The duties of every disk: each listed entry is whole, the next publish is served, and
// temporaries disappear.
std::string still_works(const std::string& disk, const std::vector<Entry>& entries) {
  Store store(options_for(disk, without_flushing()));
  std::vector<UnreadPart> unread;
  for (const Listing& listing : store.list(&unread)) {
    if (const auto entry = store.read(listing); !entry) return "verify: " + entry.error().sentence;
  }
  if (!unread.empty()) return "verify: " + unread.front().sentence;
  age(disk);
  for (const Entry& entry : entries) {
    const Store::Lock lock = store.lock(entry.identity, entry.toolchain);
    if (!lock.held() || !store.publish(entry)) return "the next publish fails";
    if (auto wrong = look_up(store, {entry}, false); !wrong.empty()) return wrong;
  }
  prune(disk + "/root", {}, without_flushing());
  return expect_no_temporaries(disk);
}

void compile(const StoreOptions& options, const Entry& entry) {
  Store store(options);
  const Store::Lock lock = store.lock(entry.identity, entry.toolchain);
  store.lookup(entry.identity, entry.toolchain);
  store.publish(entry);
}

// --- the pieces of work ---

const Entry kOld = make_entry(0, 1);
const Entry kNew = make_entry(0, 2);

Work a_first_entry() {
  return {"AFirstEntry", [](const std::string&) {},
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            compile(options_for(disk, ops), kNew);
            ops->promise();
          },
          [](const std::string& disk, int promises) {
            Store store(options_for(disk, without_flushing()));
            auto wrong = look_up(store, {kNew}, promises == 0);
            return wrong.empty() ? still_works(disk, {kNew}) : wrong;
          }};
}

Work an_entry_replaced() {
  return {"AnEntryReplaced", [](const std::string& disk) { publish_in(disk + "/root", kOld); },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            ops->promise();  // there is an entry
            Store(options_for(disk, ops)).publish(kNew);
            ops->promise();  // and it is the new one
          },
          [](const std::string& disk, int promises) {
            Store store(options_for(disk, without_flushing()));
            const std::vector<Entry> all{kNew, kOld};
            auto wrong = look_up(store, promises == 2 ? std::vector{kNew} : all, promises == 0);
            return wrong.empty() ? still_works(disk, {kNew}) : wrong;
          }};
}

Work a_damaged_entry() {
  return {"ADamagedEntry",
          [](const std::string& disk) {
            std::vector<std::uint8_t> bytes = serialize(kOld);
            bytes[bytes.size() / 2] ^= 1;
            write_bytes(path_in(disk + "/root", kOld), bytes);
          },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            compile(options_for(disk, ops), kNew);
            ops->promise();
          },
          [](const std::string& disk, int promises) {
            Store store(options_for(disk, without_flushing()));
            auto wrong = look_up(store, {kNew}, promises == 0);
            return wrong.empty() ? still_works(disk, {kNew}) : wrong;
          }};
}

constexpr int kEntries = 4;

// Every one of the entries is whole or missing, and the number of those that are there is right.
std::string count_entries(const std::string& disk, int least, int most) {
  Store store(options_for(disk, without_flushing()));
  int found = 0;
  for (int i = 0; i < kEntries; ++i) {
    const Entry entry = make_entry(i);
    if (auto wrong = look_up(store, {entry}, true); !wrong.empty()) return wrong;
    found += store.lookup(entry.identity, entry.toolchain) ? 1 : 0;
  }
  if (found < least || found > most) return std::to_string(found) + " entries";
  std::vector<Entry> all;
  for (int i = 0; i < kEntries; ++i) all.push_back(make_entry(i));
  return still_works(disk, all);
}

void publish_all(const StoreOptions& options, const std::shared_ptr<Recorder>& ops) {
  Store store(options);
  for (int i = 0; i < kEntries; ++i) {
    store.publish(make_entry(i));
    if (ops != nullptr) ops->promise();
  }
}

Work a_prune() {
  return {"APrune", [](const std::string& disk) { publish_all(options_for(disk), nullptr); },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            const auto bytes = static_cast<std::int64_t>(serialize(make_entry(0)).size());
            PruneOptions options;
            options.max_bytes = 2 * bytes + 100;
            options.protect = std::chrono::seconds(0);
            prune(disk + "/root", options, ops);
          },
          // Kept entries are there. Removed ones may return, because nothing flushes a removal.
          [](const std::string& disk, int) { return count_entries(disk, 2, kEntries); }};
}

Work an_eviction() {
  return {"AnEviction", [](const std::string&) {},
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            StoreOptions options = options_for(disk, ops);
            options.bound.max_bytes =
                static_cast<std::int64_t>(2 * serialize(make_entry(0)).size() + 100);
            options.bound.protect = std::chrono::seconds(0);
            publish_all(options, ops);
          },
          [](const std::string& disk, int promises) {
            return count_entries(disk, promises == 0 ? 0 : 1, kEntries);
          }};
}

// As `octile cache import` adds entries, from an archive that lies beside the root.
Work an_import() {
  return {"AnImport",
          [](const std::string& disk) {
            std::map<std::string, Entry> sorted;
            for (int i = 0; i < kEntries; ++i)
              sorted[stem_of(make_entry(i)).entry_name()] = make_entry(i);
            auto archive = tools::ArchiveWriter::create(disk + "/archive");
            for (const auto& [name, entry] : sorted) archive->add(stem_of(entry), serialize(entry));
            archive->finish();
          },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            Store store(options_for(disk, ops));
            auto archive = tools::ArchiveInput::open(disk + "/archive");
            if (!archive) return;
            archive->read([&](const FileStem&, const Entry& entry) -> Status {
              store.publish(entry);
              ops->promise();
              return {};
            });
          },
          [](const std::string& disk, int promises) {
            return count_entries(disk, promises, kEntries);
          }};
}

Status export_to(const std::string& path, const Entry& entry, std::shared_ptr<FileOps> ops) {
  auto archive = tools::ArchiveWriter::create(path, std::move(ops));
  if (!archive) return tl::unexpected<Error>(archive.error());
  if (Status ok = archive->add(stem_of(entry), serialize(entry)); !ok) return ok;
  const auto digest = archive->finish();
  return digest ? Status{} : tl::unexpected<Error>(digest.error());
}

Work an_export() {
  return {"AnExport", [](const std::string& disk) { export_to(disk + "/archive", kOld, nullptr); },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            export_to(disk + "/archive", kNew, ops);
            ops->promise();
          },
          [](const std::string& disk, int promises) -> std::string {
            std::vector<Entry> read;
            const Status ok =
                tools::ArchiveInput::open(disk + "/archive").and_then([&](auto archive) {
                  return archive.read([&](const FileStem&, Entry entry) -> Status {
                    read.push_back(std::move(entry));
                    return {};
                  });
                });
            if (!ok) return ok.error().message;
            if (read.size() != 1 || (read[0] != kNew && (promises == 1 || read[0] != kOld)))
              return "a wrong archive";
            age(disk);
            if (Status again = export_to(disk + "/archive", kNew, without_flushing()); !again)
              return again.error().message;
            return expect_no_temporaries(disk);
          }};
}

// --- other files of a root ---

TuningRecord record(int bucket) { return make_decision(kTunedProblem, bucket); }

// Records are there from the first to some last one, and nothing else is.
std::string expect_records(const std::string& disk, int least, int most) {
  const TuningFile file(disk + "/root", true, without_flushing());
  const auto lines = file.read();
  if (!lines) return lines.error().sentence;
  const int count = static_cast<int>(lines->records.size());
  if (count < least || count > most) return std::to_string(count) + " records";
  for (int i = 0; i < count; ++i) {
    if (lines->records[static_cast<std::size_t>(i)] != record(i + 1)) return "a wrong record";
  }
  if (!file.append(record(9))) return "the next append fails";
  const auto more = file.read();
  if (!more || more->records.empty() || more->records.back() != record(9))
    return "the next record is lost";
  return static_cast<int>(more->records.size()) == count + 1 ? "" : "a record is lost";
}

Work a_first_record() {
  return {"AFirstTuningRecord", [](const std::string&) {},
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            EXPECT_TRUE(TuningFile(disk + "/root", true, ops).append(record(1)));
            ops->promise();
          },
          [](const std::string& disk, int promises) { return expect_records(disk, promises, 1); }};
}

Work a_further_record() {
  return {
      "AFurtherTuningRecord",
      [](const std::string& disk) {
        EXPECT_TRUE(TuningFile(disk + "/root", true).append(record(1)));
        EXPECT_TRUE(TuningFile(disk + "/root", true).append(record(2)));
      },
      [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
        EXPECT_TRUE(TuningFile(disk + "/root", true, ops).append(record(3)));
        ops->promise();
      },
      [](const std::string& disk, int promises) { return expect_records(disk, 2 + promises, 3); }};
}

Work a_memo() {
  return {
      "AMemo",
      [](const std::string& disk) { EXPECT_TRUE(MemoFile(disk + "/root", "memo").replace("old")); },
      [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
        EXPECT_TRUE(MemoFile(disk + "/root", "memo", ops).replace("a new text"));
        ops->promise();
      },
      [](const std::string& disk, int promises) -> std::string {
        const MemoFile memo(disk + "/root", "memo", without_flushing());
        const auto text = memo.read();
        if (!text) return text.error().sentence;
        if (*text != "a new text" && (promises == 1 || *text != "old")) return "a wrong text";
        age(disk);
        if (!memo.replace("next") || memo.read().value_or("") != "next")
          return "the next text is lost";
        return expect_no_temporaries(disk);
      }};
}

MeasuredDevice device(double clock_ghz) {
  return {"some-gpu", 100, clock_ghz, 2, 1, "13.0", "2026-01-31T12:00:00Z"};
}

Work a_measured_device() {
  return {
      "AMeasuredDevice",
      [](const std::string& disk) { EXPECT_TRUE(MeasuredDevices(disk + "/root").put(device(1))); },
      [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
        EXPECT_TRUE(MeasuredDevices(disk + "/root", ops).put(device(2)));
        ops->promise();
      },
      [](const std::string& disk, int promises) -> std::string {
        const auto devices = MeasuredDevices(disk + "/root", without_flushing()).read();
        if (!devices) return devices.error().sentence;
        if (devices->size() != 1) return "a device is lost";
        const double clock = devices->front().clock_ghz;
        return clock == 2 || (promises == 0 && clock == 1) ? "" : "a wrong device";
      }};
}

Proof proof_of(const char* test, const char* wrong) {
  return {std::string(32, 'a'),  "13.0 libcuda.so.580", test, std::string(32, '1'), wrong, 25,
          "2026-11-30T16:10:00Z"};
}

// A unit that is wrong must not be right behind a crash: what was known stays, and the outcome that
// was promised is there.
Work a_proof() {
  static const Proof kKnown = proof_of("matrix unit mma", "");
  static const Proof kFound = proof_of("matrix unit tcgen05", "D[5][7] is 1");
  return {"AProof",
          [](const std::string& disk) {
            EXPECT_TRUE(Proofs(disk + "/root", kKnown.device).put(kKnown));
          },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            EXPECT_TRUE(Proofs(disk + "/root", kKnown.device, ops).put(kFound));
            ops->promise();
          },
          [](const std::string& disk, int promises) -> std::string {
            const Proofs file(disk + "/root", kKnown.device, without_flushing());
            const auto proofs = file.read();
            if (!proofs) return proofs.error().sentence;
            const bool has_both = *proofs == std::vector{kKnown, kFound};
            if (!has_both && (promises > 0 || *proofs != std::vector{kKnown}))
              return "a proof is lost or wrong";
            return file.put(kFound) ? "" : "the next proof cannot be kept";
          }};
}

Work an_event() {
  return {"AnEvent",
          [](const std::string& disk) {
            EXPECT_TRUE(StatisticsLog(disk + "/root").count(CacheEvent::kMiss, 100));
          },
          [](const std::string& disk, const std::shared_ptr<Recorder>& ops) {
            EXPECT_TRUE(StatisticsLog(disk + "/root", ops).count(CacheEvent::kHit, 100));
          },
          // An event is not flushed: it may be lost, and those before it are not.
          [](const std::string& disk, int) -> std::string {
            const StatisticsLog log(disk + "/root", without_flushing());
            const auto days = log.read();
            if (!days || days->size() != 1) return "no day";
            if (days->front().misses != 1 || days->front().hits > 1) return "a wrong count";
            return log.count(CacheEvent::kHit, 1) ? "" : "the next event cannot be counted";
          }};
}

// --- every state of each ---

Recording record_changes(const Work& work, std::vector<std::string>* text = nullptr) {
  const TempDir folder;
  const std::string disk = folder / "disk";
  fs::create_directories(disk);
  work.before(disk);
  const auto ops = std::make_shared<Recorder>(disk);
  work.work(disk, ops);
  if (text != nullptr) *text = ops->text();
  return ops->recording();
}

class CacheCrash : public ::testing::TestWithParam<Work> {};

// The recordings are made on the filesystem of the temporary folder.
TEST_P(CacheCrash, LeavesTheOldOrTheNew) {
  int states = 0;
  const Recording recording = record_changes(GetParam());
  EXPECT_EQ(check_crashes(recording, GetParam().check, &states), "");
  EXPECT_GT(states, 2);
  RecordProperty("states", states);
}

TEST_P(CacheCrash, LeavesTheOldOrTheNewOnAnOverlay) {
  const std::string wrong = check_crashes_on_overlay(record_changes(GetParam()), GetParam().check);
  if (wrong == "no right to mount") GTEST_SKIP() << "no overlay can be mounted here";
  EXPECT_EQ(wrong, "");
}

INSTANTIATE_TEST_SUITE_P(Work, CacheCrash,
                         ::testing::Values(a_first_entry(), an_entry_replaced(), a_damaged_entry(),
                                           a_prune(), an_eviction(), an_import(), an_export(),
                                           a_first_record(), a_further_record(), a_memo(),
                                           a_measured_device(), a_proof(), an_event()),
                         [](const auto& one) { return one.param.name; });

// --- the order ---

// The order that the states above depend on, in full.
TEST(CacheCrashOrder, WritesFlushesRenamesAndFlushesTheFolder) {
  std::vector<std::string> text;
  record_changes(an_entry_replaced(), &text);
  // One write of each file is enough.
  text.erase(std::unique(text.begin(), text.end()), text.end());
  const std::string folder = "root/v1/" + stem_of(kNew).folder();
  const std::string entry = folder + "/" + stem_of(kNew).entry_name();
  const std::string temporary = entry + ".<u>.tmp";
  EXPECT_THAT(text, ElementsAre("create " + temporary, "write " + temporary, "flush " + temporary,
                                "rename " + temporary + " to " + stem_of(kNew).entry_name(),
                                "flush " + folder, "write root/v1/usage"));
}

TEST(CacheCrashOrder, FlushesTheFolderAboveEachThatIsMade) {
  std::vector<std::string> text;
  record_changes(a_first_entry(), &text);
  const std::vector<std::string> first(text.begin(), text.begin() + 6);
  EXPECT_THAT(first, ElementsAre("make root", "flush .", "make root/v1", "flush root",
                                 "make root/v1/" + stem_of(kNew).folder(), "flush root/v1"));
}

// A writer that leaves out or exchanges one of the steps is found by the same checks. The check of
// entries also finds damage that its checksum turns into a miss.
TEST(CacheCrashOrder, AMissingFlushOfTheFileIsFound) {
  for (const Work& work : {a_first_entry(), an_entry_replaced(), an_export(), a_memo(),
                           a_measured_device(), a_first_record(), a_further_record()}) {
    Recording recording = record_changes(work);
    std::set<int> written;
    for (const DiskChange& change : recording.changes)
      if (change.kind == Kind::kWrite) written.insert(change.node);
    for (DiskChange& change : recording.changes)
      if (change.kind == Kind::kFlush && written.contains(change.node)) change.node = -1;
    EXPECT_THAT(check_crashes(recording, work.check), HasSubstr("states are wrong")) << work.name;
  }
}

TEST(CacheCrashOrder, AMissingFlushOfTheFolderIsFound) {
  for (const Work& work : {a_first_entry(), an_entry_replaced(), an_export(), a_memo(),
                           a_measured_device(), a_first_record()}) {
    Recording recording = record_changes(work);
    std::set<int> written;
    for (const DiskChange& change : recording.changes)
      if (change.kind == Kind::kWrite) written.insert(change.node);
    for (DiskChange& change : recording.changes)
      if (change.kind == Kind::kFlush && !written.contains(change.node)) change.node = -1;
    EXPECT_THAT(check_crashes(recording, work.check), HasSubstr("states are wrong")) << work.name;
  }
}

TEST(CacheCrashOrder, ARenameBeforeTheFlushIsFound) {
  for (const Work& work : {an_entry_replaced(), an_export(), a_memo(), a_measured_device()}) {
    Recording recording = record_changes(work);
    auto& changes = recording.changes;
    bool exchanged = false;
    for (std::size_t i = 1; i < changes.size() && !exchanged; ++i) {
      exchanged = changes[i].kind == Kind::kRename && changes[i - 1].kind == Kind::kFlush &&
                  changes[i].node == changes[i - 1].node;
      if (exchanged) std::swap(changes[i], changes[i - 1]);
    }
    ASSERT_TRUE(exchanged) << work.name;
    EXPECT_THAT(check_crashes(recording, work.check), HasSubstr("states are wrong")) << work.name;
  }
}

}  // namespace
}  // namespace octile::cache
