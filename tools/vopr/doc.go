// Package vopr plays worlds from seeds: two to five NICs with real engines, programs that post random verbs requests in
// both directions over many QPs, and networks that lose, delay, reorder, copy and damage packets, whose planes come and
// go, while QPs fail and machines start again. Everything happens in virtual time on one goroutine; a seed means the
// same events everywhere. It is modelled on TigerBeetle's simulator of that name.
//
//   - plan.go: what a seed stands for: a swarm of features, sizes, the network;
//   - world.go, net.go, memory.go: nodes, clock, links, memory and keys;
//   - program.go, life.go, faults.go: what programs and the world do;
//   - flow.go, oracle.go: what was posted and what programs see, and the properties that must hold (the list is there);
//   - run.go: play, heal, see that everything ends, look for leaks; many.go: many seeds at a time;
//   - engine.go, engine_rocev2.go: the seam to the engines.
//
// Whether the checkers see anything is tested as well: with a broken NIC (TestCanary), and with bugs planted in the
// core (internal/planted, TestPlanted).
package vopr
