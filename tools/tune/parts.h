// `octile tune --part`: the questions of one of several machines that share no folder.
#pragma once

#include <vector>

#include "tools/common/part.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Returns the questions of a part. All parts together have each question once, wherever they run,
// and need about the same time. Token counts of a problem stay together where that is possible,
// because the winner of one is a candidate for the next.
std::vector<Question> questions_of_part(const std::vector<Question>& questions, const Part& part);

}  // namespace octile::tools
