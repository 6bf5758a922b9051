package device

// defaultEngine is the engine of a NIC whose configuration names none.
var defaultEngine NewEngineFunc
