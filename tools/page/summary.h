// The words of a page.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/page/content.h"

namespace octile::tools {

std::string page_title(const PageContent& content);

// Returns the sentences that the page begins with.
std::string summary(const PageContent& content, const std::vector<PageRow>& rows);

// Returns the method and tools of the measurement: a fact and its value.
std::vector<std::pair<std::string, std::string>> method(const PageContent& content);

}  // namespace octile::tools
