// Package scale is the simulator's flow level: collectives of up to a million endpoints, as fluid flows that share links by
// max–min fairness, with the latency of messages, the headers' share, loss and failures in closed forms. docs/sim-scale.md
// has the model, its assumptions and what it cannot show.
//
// It stays small because symmetry is used before anything is computed:
//
//   - Steps of a collective that are alike are computed once and counted (a ring of n hosts has 2(n-1) of them).
//   - Hosts that a shift of the whole fabric maps onto each other are one class (Fabric.period): a pattern that such a shift
//     does not change gives every link of a class the same load, so max–min fairness over classes, with counts, is that over
//     links. A shift by k or an exchange with i xor k needs as many classes as a leaf, or a pod, has hosts; all-to-all needs one.
//   - Spraying loads all uplinks of a leaf, in all planes, alike: they are one link with the sum of their rates.
//   - Flows of one size that begin together end, the last of them, after what the busiest link carries divided by its rate
//     (busiest says why). So connections that are hashed one by one are only counted, never filled in.
package scale
