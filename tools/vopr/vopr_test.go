package vopr

import (
	"context"
	"flag"
	"runtime"
	"testing"

	"github.com/metaroce/metaroce/transport"
)

var (
	seeds = flag.Int("seeds", 150, "number of seeds")
	seed0 = flag.Uint64("seed", 1, "first seed")
)

// TestSeeds plays some seeds of both transports; ci/run.sh plays many with `mroce vopr`.
func TestSeeds(t *testing.T) {
	if testing.Short() { // the race detector makes each world ten times slower
		*seeds = min(*seeds, 20)
	}
	for _, tr := range Transports {
		o := Options{Transport: tr}
		Many(context.Background(), o, *seed0, *seeds, runtime.GOMAXPROCS(0), func(r Result) bool {
			if r.Violation != nil {
				t.Errorf("seed %d: %v\n  %v\n  again: go run ./tools/mroce vopr --transport %s --seed %d --trace", r.Seed, r.Violation, r.Plan, tr.Name, r.Seed)
			}
			return true
		})
	}
}

// TestFailedOnce plays seeds that found something once. A change of plans or programs gives them another meaning, so
// each fault has a test of its own where a short script can bring it about; the last one here has none.
func TestFailedOnce(t *testing.T) {
	for _, seed := range []uint64{36, 176, 256, 30564, 171037} {
		if r := Run(seed, Options{}); r.Violation != nil {
			t.Errorf("seed %d: %v", seed, r.Violation)
		}
	}
}

// TestSameSeedSameTrace: a seed means the same events whatever else the machine does.
func TestSameSeedSameTrace(t *testing.T) {
	hashes := func(procs int) map[uint64]uint64 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		m := map[uint64]uint64{}
		Many(context.Background(), Options{}, 1, 40, procs, func(r Result) bool {
			m[r.Seed] = r.Hash
			return true
		})
		return m
	}
	one, two := hashes(1), hashes(2)
	different := map[uint64]bool{}
	for seed, h := range one {
		if two[seed] != h {
			t.Errorf("seed %d: %x under GOMAXPROCS=1, %x under 2", seed, h, two[seed])
		}
		different[h] = true
	}
	if len(different) != 40 {
		t.Errorf("40 seeds give %d traces", len(different))
	}
}

// canary is a NIC whose DMA or queues are broken; the engine is not.
type canary struct {
	transport.Host
	n, after int
	break_   func(c *canary, op *transport.MemOp) bool
}

func (c *canary) DMA(ops []transport.MemOp) {
	c.Host.DMA(ops)
	for i := range ops {
		if op := &ops[i]; op.Err == transport.MemOK && c.n <= c.after && c.break_(c, op) {
			c.n++
		}
	}
}

// TestCanary: the checkers see a NIC that does something wrong once.
func TestCanary(t *testing.T) {
	redo := func(kind transport.MemKind, harm func(op *transport.MemOp)) func(*canary, *transport.MemOp) bool {
		return func(c *canary, op *transport.MemOp) bool {
			if op.Kind != kind {
				return false
			}
			if c.n == c.after {
				again := *op
				harm(&again)
				c.Host.DMA([]transport.MemOp{again})
			}
			return true
		}
	}
	flip := func(op *transport.MemOp) {
		if len(op.Buf) > 0 {
			op.Buf = append([]byte{op.Buf[0] ^ 1}, op.Buf[1:]...)
		}
	}
	for name, b := range map[string]func(*canary, *transport.MemOp) bool{
		"a byte of a WRITE":    redo(transport.MemWrite, flip),
		"a byte of a SEND":     redo(transport.MemScatter, flip),
		"a byte of a READ":     redo(transport.MemLand, flip),
		"an atomic runs twice": redo(transport.MemFetchAdd, func(*transport.MemOp) {}),
	} {
		broken := Transport{Name: "canary", New: func(u Tuning, h transport.Host) Engine {
			return MetaRoCE.New(u, &canary{Host: h, after: 5, break_: b})
		}}
		seen := 0
		Many(context.Background(), Options{Transport: broken, With: Send | Read | Atomic}, 1, 10, 1, func(r Result) bool {
			if r.Violation != nil {
				seen++
			}
			return true
		})
		if seen < 3 { // not every world does it often enough
			t.Errorf("%s: seen in %d of 10 worlds", name, seen)
		}
	}
}

// TestSwarm: each feature is on in some seeds and off in others.
func TestSwarm(t *testing.T) {
	var on [len(featureNames)]int
	for seed := range uint64(1000) {
		p := NewPlan(seed, 0)
		for i := range on {
			if p.has(1 << i) {
				on[i]++
			}
		}
	}
	for i, n := range on {
		if n < 30 || n > 900 {
			t.Errorf("%s is on in %d of 1000 seeds", featureNames[i], n)
		}
	}
	if 1<<len(featureNames) != features {
		t.Errorf("%d names, the features end at %#x", len(featureNames), uint64(features))
	}
	if f, err := ParseFeatures("loss,srq"); f != Loss|SRQ || err != nil {
		t.Error(f, err)
	}
}
