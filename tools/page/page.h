// One offline page about measurements: a summary, charts, tables, method, and the records to
// download. It needs no network, and works under its own Content-Security-Policy without eval.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/tuner/decision.h"
#include "tools/command.h"
#include "tools/page/content.h"

namespace octile::tools {

// Records of more bytes are compressed by zstd in the page.
inline constexpr std::size_t kMostPlainRecords = std::size_t{64} << 10;

// Returns the page as HTML. `chart_library` is JavaScript that sets window.vegaEmbed; without it
// the page has no charts and says so.
std::string page_html(const PageContent& content, std::string_view chart_library);

// Writes the page of this build. Errors: those of write_output_file(); kInvalidArgument if there
// is nothing to show.
Status write_page(const std::string& path, const PageContent& content);

// Adds --report to a command that measures.
void add_report_option(CLI::App& app, std::string& path);

// Refuses a page that could not be written, before anything is measured. Does nothing if `path` is
// empty.
Status check_report_file(const std::string& path);

// Called by the commands that measure, at their end. Do nothing if `path` is empty.
Status report_tuning(const std::string& path, const WorkOptions& work, const DeviceSpec& device,
                     const std::vector<tuner::Decision>& decisions);
Status report_measurements(const std::string& path, const WorkOptions& work,
                           const DeviceSpec& device, std::vector<Record> measured);

}  // namespace octile::tools
