// The charts of a page, as Vega-Lite specifications.
#pragma once

#include <string>
#include <vector>

#include "cache/json.h"
#include "tools/page/content.h"

namespace octile::tools {

// A chart reads the page's table by the name "rows" or "layers", or has its own data.
struct Chart {
  std::string id;       // "roofline"
  std::string heading;  // "Roofline"
  std::string caption;  // a sentence about the chart
  Json specification;
};

// Returns the charts that there are numbers for.
std::vector<Chart> charts_of(const PageContent& content, const std::vector<PageRow>& rows);

// Returns sentences about the parts that are left out, and the command that would bring them.
std::vector<std::string> missing_charts(const PageContent& content,
                                        const std::vector<PageRow>& rows);

// Returns the configuration of all charts. Colours are the page's, by name of its style's
// variables, so that a chart follows its scheme.
Json chart_config();

}  // namespace octile::tools
