// The tables of a page, as HTML. Times, gains and predictions are in a <data> element whose value
// has all digits of the record.
#pragma once

#include <string>
#include <vector>

#include "tools/page/content.h"

namespace octile::tools {

// Tables that a reader sorts by their headings. Columns without a value are left out.
std::string rows_table(const std::vector<PageRow>& rows);
std::string layers_table(const std::vector<LayerVerdict>& layers);
std::string totals_table(const std::vector<ModelVerdict>& totals);

}  // namespace octile::tools
