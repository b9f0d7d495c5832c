// The library that the tests of the search open.
extern "C" int HoldfastSmallVersion() { return 7; }
