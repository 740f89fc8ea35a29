// What of a run must be the same where it goes on from a checkpoint.
#ifndef DYNATRAIN_APPS_RESUME_CHECK_H_
#define DYNATRAIN_APPS_RESUME_CHECK_H_

#include <map>
#include <string>
#include <vector>

#include "dynatrain/apps/job_config.h"
#include "dynatrain/apps/job_setup.h"

namespace dynatrain::apps {

// The run by flag name, as a checkpoint tells of it. "data" is the file's length and a hash of
// pieces spread over it.
Result<std::map<std::string, std::string>> RunFacts(const JobConfig& config);

// Replaces config->resume by the path of the one checkpoint that the job goes on from. Refuses
// (naming both values) a checkpoint that is damaged or incomplete, is of another model or dtype,
// or whose position in the data would be lost with this data, seq, global batch or seed; and a job
// with nothing left to do. `notes` gets a line for every difference that only changes how training
// goes on.
Status CheckResume(const JobSetup& setup, JobConfig* config, std::vector<std::string>* notes);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_RESUME_CHECK_H_
