// No reverse look-ups of addresses. For this folder's use.
#ifndef DYNATRAIN_BRIDGE_NUMERIC_NAMES_H_
#define DYNATRAIN_BRIDGE_NUMERIC_NAMES_H_

namespace dynatrain::bridge {

// c10d asks the resolver for the name of every address that it connects or is connected to, only to
// put it into log lines. Where no name server answers, that takes 5 seconds a time, and in the
// store's server it stops the whole store meanwhile. Programs that link this function define
// getnameinfo() themselves, so that it always tells numbers. The function has nothing to do;
// calling it makes the linker take the definition.
void UseNumericNames();

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_NUMERIC_NAMES_H_
