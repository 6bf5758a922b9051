package figures

import (
	"fmt"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
)

// ccsim's arguments. R are the rules that every trial had, G the grant as it was kept; the rest says that acks are as
// now: every 8 packets or an eighth of a round trip, 64 paths a plane.
const (
	argsR       = "-minw .1 -eta 1 -mi .125 -maxw 2 -roll gen -pick repsm -rq 1.5 -eps .02 -ecnq 1 -tol 3 -rackgrow -rule qb -K 64 -ackn 8"
	argsG       = "-grant -gf 1.5 -gadapt -offered -uhigh .97 -gmin 1.05"
	argsUnknown = "-grant -gf 1.5 -gadapt -cmeas -plateau -gmin 1.2"
)

func arguments(parts ...string) (out []string) {
	for _, p := range parts {
		out = append(out, strings.Fields(p)...)
	}
	return out
}

func lost(p float64) string {
	if p == 0 {
		return ""
	}
	return fmt.Sprintf("-loss %g -ackloss %g", p, p)
}

const ms = mono.Millisecond

var steadyKeys = []string{vGoodput, vDropped, vJain}

// steadyTrial makes a row of a steady load.
func steadyTrial(name, world string, x steadyRow, args ...string) Trial {
	if x.d == 0 {
		x.warm, x.d = ms/2, ms
	}
	keys := steadyKeys
	if x.pattern == pair {
		keys = keys[:1]
	}
	return Trial{Name: name, World: world, Args: arguments(append([]string{argsR}, args...)...), Keys: keys,
		run: func(r *Result, seed uint64) { x.run(r, seed) }}
}

func allTrials() (ts []Trial) {
	ts = append(ts, trialsOfIncast()...)
	ts = append(ts, trialsOfFabric()...)
	ts = append(ts, trialsOfPair()...)
	ts = append(ts, trialsOfWindows()...)
	ts = append(ts, trialsOfPaths()...)
	ts = append(ts, trialsOfTails()...)
	ts = append(ts, trialOfFailure())
	return append(ts, trialsOfGrant()...)
}

// trialsOfIncast: section 2, A1, last row, and what is said of 100:1.
func trialsOfIncast() (ts []Trial) {
	for _, n := range []int{8, 32, 100} {
		for _, q := range []float64{0.25, 1} {
			x := steadyRow{pattern: incast, n: n, queue: q, warm: 2 * ms, d: 3 * ms}
			ts = append(ts, steadyTrial(fmt.Sprintf("2/incast-%d-q%g", n, q), fmt.Sprintf("%d:1, queue %g BDP", n, q), x,
				argsG, fmt.Sprintf("-dur 2500 -warm 1000 -t incast -n %d -q %g", n, q)))
		}
	}
	return ts
}

// trialsOfFabric: section 2, A1: permutation; a core with half the capacity.
func trialsOfFabric() (ts []Trial) {
	for _, p := range []float64{0, 0.01, 0.05, 0.1} {
		ts = append(ts, steadyTrial(fmt.Sprintf("2/permutation-%g%%", 100*p), fmt.Sprintf("permutation of 32 hosts, %g %% lost", 100*p),
			steadyRow{pattern: permutation, queue: 1, loss: p, warm: ms, d: ms}, argsG, "-dur 2500 -warm 1000 -t perm", lost(p)))
	}
	for _, q := range []float64{0.25, 0.5, 1} {
		ts = append(ts, steadyTrial(fmt.Sprintf("2/core-2:1-q%g", q), fmt.Sprintf("permutation, core of half the rate, queue %g BDP", q),
			steadyRow{pattern: permutation, queue: q, over: 2, warm: ms, d: ms}, argsG, fmt.Sprintf("-dur 2500 -warm 1000 -t perm -over 2 -q %g", q)))
	}
	return ts
}

// trialsOfPair: section 2, A1, last column; sustained bursts.
func trialsOfPair() (ts []Trial) {
	for _, p := range []float64{0.01, 0.05, 0.1} {
		ts = append(ts, steadyTrial(fmt.Sprintf("2/pair-%g%%", 100*p), fmt.Sprintf("one pair, one plane, %g %% lost", 100*p),
			steadyRow{pattern: pair, queue: 1, loss: p, warm: 2 * ms, d: 8 * ms}, argsG, "-dur 9000 -warm 1000 -t pair", lost(p)))
	}
	for _, p := range []float64{0.05, 0.1} {
		ts = append(ts, steadyTrial(fmt.Sprintf("2/pair-4planes-%g%%", 100*p), fmt.Sprintf("one pair, 4 planes, %g %% lost", 100*p),
			steadyRow{pattern: pair, planes: 4, queue: 1, loss: p, warm: 2 * ms, d: 4 * ms}, argsG, "-dur 5000 -warm 1000 -P 4 -t pair", lost(p)))
	}
	for _, p := range []float64{0.01, 0.05, 0.1} {
		ts = append(ts, steadyTrial(fmt.Sprintf("2/bursts-%g%%", 100*p), fmt.Sprintf("one pair, one plane, %g %% lost in bursts of 8", 100*p),
			steadyRow{pattern: pair, queue: 1, loss: p, burst: 8, warm: 2 * ms, d: 16 * ms}, argsG, "-dur 17000 -warm 1000 -t pair -burst 8", lost(p)))
	}
	return ts
}

// trialsOfWindows: section 2, A6: windows per plane with recycling, four planes, queues of 1 BDP.
func trialsOfWindows() (ts []Trial) {
	row := func(name, world string, x steadyRow, args string) {
		x.planes, x.queue, x.warm, x.d = 4, 1, ms/2, ms/2
		ts = append(ts, steadyTrial("2/planes-"+name, "4 planes: "+world, x, argsG, "-P 4 -dur 1500 -warm 700", args))
	}
	row("permutation", "permutation", steadyRow{pattern: permutation}, "-t perm")
	row("marks", "permutation, ECN", steadyRow{pattern: permutation, marks: true}, "-t perm -ecn")
	row("gray", "permutation, plane 0 loses 5 %", steadyRow{pattern: permutation, gray: 0.05}, "-t perm -gray .05")
	row("core-2:1", "permutation, core of half the rate", steadyRow{pattern: permutation, over: 2}, "-t perm -over 2")
	row("incast-8", "8:1", steadyRow{pattern: incast, n: 8}, "-t incast -n 8")
	row("incast-32", "32:1", steadyRow{pattern: incast, n: 32}, "-t incast -n 32")
	row("incast-100", "100:1", steadyRow{pattern: incast, n: 100}, "-t incast -n 100")
	times := func(name, world string, x steadyRow, args string) {
		x.planes, x.queue, x.d = 4, 1, 5*ms
		ts = append(ts, Trial{Name: "2/time-" + name, World: "4 planes: " + world, Keys: []string{vMedian, vLast},
			Args: arguments(argsR, argsG, "-P 4 -dur 5000 -warm 0", args), run: x.runTimes})
	}
	times("permutation-8MiB", "8 MiB each, permutation", steadyRow{pattern: permutation, message: 8 << 20}, "-t perm -flow 2048")
	times("incast-32-1MiB", "1 MiB each, 32:1", steadyRow{pattern: incast, n: 32, message: 1 << 20}, "-t incast -n 32 -flow 256")
	return ts
}

// trialsOfPaths: section 3, A2: how many paths a plane.
func trialsOfPaths() (ts []Trial) {
	for _, gbps := range []float64{100, 400} {
		for _, k := range []int{4, 8, 16, 32, 64} {
			if gbps > 100 && k != 4 && k != 16 && k != 64 {
				continue
			}
			x := steadyRow{pattern: permutation, queue: 1, gbps: gbps, engine: lean{paths: k}, warm: ms / 2, d: ms / 2}
			if gbps > 100 {
				x.d /= 2
			}
			t := steadyTrial(fmt.Sprintf("3/paths-%d-%gG", k, gbps), fmt.Sprintf("permutation, %d paths, %g Gbit/s", k, gbps), x,
				argsG, fmt.Sprintf("-dur 1500 -warm 500 -t perm -K %d -gbps %g", k, gbps))
			t.Keys = t.Keys[:2]
			ts = append(ts, t)
		}
	}
	return ts
}

// trialsOfTails: section 3, A4: single messages over four planes, data and acks lost.
func trialsOfTails() (ts []Trial) {
	row := func(packets int, p float64, n int, twin bool) {
		x := steadyRow{pattern: pair, planes: 4, queue: 1, loss: p, message: 4096 * packets}
		name, world, args := "", "", ""
		if twin {
			name, world, args, x.engine.twin = "-twin", ", sent twice", "-twin 1", 1
		}
		ts = append(ts, Trial{Name: fmt.Sprintf("3/tail-%d-%g%%%s", packets, 100*p, name),
			World: fmt.Sprintf("messages of %d packets, %g %% lost%s", packets, 100*p, world), Keys: []string{vP99, vP999},
			Args: arguments(argsR, argsG, "-t msgs -P 4 -dur 60000 -warm 0 -tick .25 -dupmax 10 -probe old -pfloor 1 -acktwin",
				fmt.Sprintf("-msg %d", packets), lost(p), args),
			run: func(r *Result, seed uint64) { x.runTail(r, seed, n) }})
	}
	for _, packets := range []int{1, 4, 16} {
		for _, p := range []float64{0.01, 0.05, 0.1} {
			row(packets, p, 20000, false)
		}
	}
	for _, p := range []float64{0.01, 0.05, 0.1} {
		row(1, p, 20000, true)
	}
	return ts
}

// trialOfFailure: section 3, A5.
func trialOfFailure() Trial {
	x := steadyRow{pattern: permutation, hosts: 16, planes: 4, queue: 1, warm: ms / 2, d: ms / 2}
	return Trial{Name: "3/plane-fails", World: "permutation of 16 hosts, plane 0 of 4 dies", Keys: []string{vRest, vSlow},
		Args: arguments(argsR, argsG, "-P 4 -t perm -hosts 16 -fail 500 -bins -dur 1000 -warm 100 -tick .5 -planerule"), run: x.runFailure}
}

// trialsOfGrant: section 5: random loss together with incast, rates known and unknown.
func trialsOfGrant() (ts []Trial) {
	for _, unknown := range []bool{false, true} {
		g, what, suffix := argsG, "", ""
		if unknown {
			g, what, suffix = argsUnknown, ", rate unknown", "-unknown"
		}
		row := func(name, world string, p float64, x steadyRow, args string) {
			x.unknown, x.loss = unknown, p
			ts = append(ts, steadyTrial(fmt.Sprintf("5/%s-%g%%%s", name, 100*p, suffix), fmt.Sprintf("%s, %g %% lost%s", world, 100*p, what), x,
				g, args, lost(p)))
		}
		for _, p := range []float64{0, 0.05, 0.1} {
			for _, c := range []struct {
				n int
				q float64
			}{{8, 0.25}, {32, 0.25}, {32, 1}} {
				if p == 0 && !unknown {
					continue // 2/incast
				}
				row(fmt.Sprintf("incast-%d-q%g", c.n, c.q), fmt.Sprintf("%d:1, queue %g BDP", c.n, c.q), p,
					steadyRow{pattern: incast, n: c.n, queue: c.q, warm: 2 * ms, d: 3 * ms}, fmt.Sprintf("-dur 2500 -warm 1000 -t incast -n %d -q %g", c.n, c.q))
			}
			row("all-to-all", "all-to-all of 32 hosts, messages of 16 packets", p,
				steadyRow{pattern: allToAll, queue: 1, message: 16 * 4096, warm: ms / 2, d: ms / 2}, "-dur 1000 -warm 500 -t a2a")
		}
	}
	return ts
}
