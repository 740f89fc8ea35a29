// Checks, before anything runs, that the programs of all ranks fit together and cannot deadlock.
// For tests and tools: it needs the programs of every rank in one place.
#ifndef DYNATRAIN_ENGINE_CHECKER_H_
#define DYNATRAIN_ENGINE_CHECKER_H_

#include <cstdint>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/engine/program.h"

namespace dynatrain::engine {

// Ok if
//  - all programs have equal inputs_fingerprint and their message_balance adds up to 0;
//  - each send has one receive of equal tag, bytes and pieces, and the other way round;
//  - what a rank relays it has finished receiving;
//  - a streaming program gives memory back only after everything sent is acknowledged;
//  - in each (phase, round) a rank has one peer at most, the same for both;
//  - all ranks run to the end with rendezvous sends when no more than `max_outstanding` messages
//  per rank and direction are
//    in flight, in the order of posting. Completions only enable more, so one simulated order
//    stands for all.
// Else kInternal, naming ranks, phase and round.
Status CheckPrograms(const std::vector<Program>& programs, int32_t max_outstanding);

}  // namespace dynatrain::engine

#endif  // DYNATRAIN_ENGINE_CHECKER_H_
