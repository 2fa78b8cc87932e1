// The first steps of a program that the library starts (start_program.h), and its version.
#pragma once

#include <unistd.h>

#include <string>

namespace octile {

// Before the colon or the path of a program's argument: the program counts as having more rights
// than its caller, because the process that starts it has.
constexpr std::string_view kMoreRights = "+";

constexpr int kHostSocket = STDIN_FILENO;

// "0.2.0". A program and a library of different versions do not work together.
std::string own_version();

// Returns true if descriptor 0 is a socket.
bool is_started_by_library();

// Closes what the host left open, so that nobody waits for the end of a file that is open here.
// Signals to the host's terminal or its service are the host's business: they are blocked, and
// others have the system's handling. If memory runs out, the system ends this process before the
// host.
void leave_the_host();

}  // namespace octile
