package figures

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/transport/metaroce"
)

// The trials: rows of the design's simulations whose rules were kept, run with the real core, beside the simulator that
// the design was tried with (ccsim, a model of the association layer alone). Both get the same world: planes of
// 100 Gbit/s, a round trip of 8 µs, packets of 4 KiB, 4 or more leaves of 8 hosts, 8 spines a plane, drop-tail queues.
// Acknowledgements get lost like data; ccsim's share its queues, the core's pass them and take the wire before it.

// Trial is one row.
type Trial struct {
	Name  string   // stable: section of the trials, world, what was varied
	World string   // for people
	Args  []string // of ccsim, for the same row
	Keys  []string // values that are compared
	run   func(r *Result, seed uint64)
}

// Result is a trial's outcome.
type Result struct {
	Name   string             `json:"name"`
	World  string             `json:"world"`
	Args   string             `json:"ccsim_args"`
	Seed   uint64             `json:"seed"`
	Keys   []string           `json:"compared"`
	Core   map[string]float64 `json:"core"`
	Ccsim  map[string]float64 `json:"ccsim"` // recorded: ccsim.tsv
	Worse  []string           `json:"worse,omitempty"`
	Errors int                `json:"errors,omitempty"`      // flows that ended with an error
	Counts map[string]uint64  `json:"counters,omitempty"`    // of the engines, all together
	Shares map[string]float64 `json:"diagnostics,omitempty"` // what explains a figure
}

// Values of rows. Shares are in percent.
const (
	vGoodput = "goodput"  // of what the receivers' links carry without headers
	vDropped = "dropped"  // data packets that found a queue full, of those sent
	vJain    = "jain"     // fairness
	vP99     = "p99_rtt"  // message time, round trips
	vP999    = "p999_rtt" //
	vMedian  = "p50_us"   // time of one long message of each host, µs
	vLast    = "max_us"   //
	vRest    = "rest"     // goodput after a plane failed, of that of the planes left
	vSlow    = "slow_rtt" // until everything sent before was delivered, slowest flow
)

// units of values, for tables.
var units = map[string]string{vGoodput: "%", vDropped: "%", vRest: "%", vP99: "RTT", vP999: "RTT", vSlow: "RTT", vMedian: "µs", vLast: "µs"}

// Unit is that of a value.
func Unit(key string) string { return units[key] }

//go:embed ccsim.tsv
var ccsimTable string

// ccsimNames are ccsim's names of the values.
var ccsimNames = map[string]string{vGoodput: "good", vDropped: "drop", vJain: "jain", vP99: "m99", vP999: "m999", vRest: "after"}

// Recorded returns what ccsim gave for a row, by its arguments and its line, from the table in the repository.
func Recorded(name string) (args, line string, ok bool) {
	for l := range strings.Lines(ccsimTable) {
		f := strings.Split(strings.TrimRight(l, "\n"), "\t")
		if len(f) == 3 && f[0] == name {
			return f[1], f[2], true
		}
	}
	return "", "", false
}

// parseCcsim reads the values out of ccsim's line.
func parseCcsim(line string) map[string]float64 {
	m := map[string]float64{}
	num := func(s string) (float64, bool) {
		x, err := strconv.ParseFloat(strings.TrimRight(s, "%us"), 64)
		return x, err == nil
	}
	for _, w := range strings.Fields(line) {
		k, v, _ := strings.Cut(w, "=")
		for ours, theirs := range ccsimNames {
			if x, ok := num(v); ok && k == theirs {
				m[ours] = x
			}
		}
		switch k {
		case "fct": // first/median/last us(ended/flows)
			v, _, _ = strings.Cut(v, "us(")
			if f := strings.Split(v, "/"); len(f) == 3 {
				m[vMedian], _ = num(f[1])
				m[vLast], _ = num(f[2])
			}
		case "heal": // median/last
			if _, last, ok := strings.Cut(v, "/"); ok {
				m[vSlow], _ = num(last)
			}
		}
	}
	return m
}

// worse lists the values in which the core is clearly worse: by more than two points of a share, a hundredth of
// fairness, 1.3 times a time.
func worse(keys []string, core, model map[string]float64) (w []string) {
	for _, k := range keys {
		a, is := core[k]
		b, was := model[k]
		if !is || !was {
			continue
		}
		bad := false
		switch k {
		case vGoodput, vRest:
			bad = a < b-2
		case vDropped:
			bad = a > b+2
		case vJain:
			bad = a < b-0.01
		case vMedian, vLast, vP99, vP999, vSlow:
			bad = a > 1.3*b
		}
		if bad {
			w = append(w, k)
		}
	}
	return w
}

// Run measures the row with the real core.
func (t Trial) Run(seed uint64) Result {
	r := Result{Name: t.Name, World: t.World, Args: strings.Join(t.Args, " "), Seed: seed, Keys: t.Keys,
		Core: map[string]float64{}, Counts: map[string]uint64{}, Shares: map[string]float64{}}
	t.run(&r, seed)
	if _, line, ok := Recorded(t.Name); ok {
		r.Ccsim = parseCcsim(line)
	}
	r.Worse = worse(t.Keys, r.Core, r.Ccsim)
	return r
}

// Trials returns the rows whose names begin with one of the given words; all for none.
func Trials(prefixes []string) (out []Trial, err error) {
	used := make([]bool, len(prefixes))
	for _, t := range allTrials() {
		take := len(prefixes) == 0
		for i, p := range prefixes {
			if strings.HasPrefix(t.Name, p) {
				take, used[i] = true, true
			}
		}
		if take {
			out = append(out, t)
		}
	}
	for i, u := range used {
		if !u {
			return nil, fmt.Errorf("no trial begins with %q", prefixes[i])
		}
	}
	return out, nil
}

// count adds up what the engines counted: why packets were sent again, and what held them up.
func (r *Result) count(w *World) {
	for _, h := range w.Hosts {
		e := coreOf(h.E)
		if e == nil {
			continue
		}
		c := &e.C
		for _, x := range []struct {
			name string
			n    uint64
		}{
			{"data", c.TxPackets}, {"acks", c.TxAcks}, {"retransmits", c.Retransmits}, {"tail_resends", c.TailResends},
			{"spurious", c.SpuriousLosses}, {"lost_gap", c.LostGap}, {"lost_time", c.LostTime}, {"lost_timeout", c.LostTimeout},
			{"lost_plane", c.LostPlane}, {"duplicates", c.DupPSN}, {"plane_failures", c.PlaneFailures}, {"twins", c.Twins},
			{"path_suspects", c.PathSuspects}, {"path_quarantines", c.PathQuarantines}, {"refused", c.RefusedLater + c.RefusedRNR},
			{"records_full", c.TxRecordsFull}, {"held_full", c.HeldFull}, {"too_old", c.DropOld},
		} {
			if x.n > 0 {
				r.Counts[x.name] += x.n
			}
		}
	}
}

// look takes the mean of the senders' windows, grants and round trips at this moment.
func (r *Result) look(w *World) {
	var n, win, grant, fly, q, base float64
	for _, h := range w.Hosts {
		e := coreOf(h.E)
		if e == nil {
			continue
		}
		for _, a := range e.Assocs() {
			for i := range a.Planes {
				p := &a.Planes[i]
				if p.Sent < 100 {
					continue
				}
				n++
				win += float64(p.Window)
				grant += float64(p.Grant)
				fly += float64(p.InFlight)
				q += a.SRTT.Micros()
				base += p.Base.Micros()
			}
		}
	}
	if n > 0 {
		bdp := float64(w.t.BDP())
		r.Shares["window_bdp"], r.Shares["grant_bdp"], r.Shares["in_flight_bdp"] = win/n/bdp, min(grant/n/bdp, 99), fly/n/bdp
		r.Shares["srtt_us"], r.Shares["base_us"] = q/n, base/n
	}
}

// core is an engine with what trials need of it.
type core = *metaroce.Engine
