// Where Octile's own code was loaded from.
#pragma once

#include <string>

namespace octile {

// Returns the folder of the file that holds this code (liboctile.so, or the program it is linked
// into), links resolved, with a slash at its end; empty if it is unknown.
std::string own_folder();

}  // namespace octile
