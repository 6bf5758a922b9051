package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/scale"
)

func (e *env) simScaleCommand() *cli.Command {
	var kinds []string
	for _, k := range scale.Kinds {
		kinds = append(kinds, string(k))
	}
	return &cli.Command{
		Name: "scale", Usage: "the flow level: collectives of up to a million endpoints, and what each NIC keeps and sends for them",
		Description: "  mroce sim scale --hosts 1k,1M --collective halving,all-to-all --size 1MiB..1GiB\n  mroce sim scale --transport metaroce,rocev2 --loss 1% --fail plane\n" +
			"  mroce sim scale --validate 256\n\nFabrics are non-blocking unless --oversubscribe says otherwise: leaves and spines of 512-port switches up to 131,072 hosts,\n" +
			"three tiers above. docs/sim-scale.md has the model and what it cannot show. 1k is 1,024 hosts, 1M 1,048,576.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "hosts", Usage: "how many endpoints, several with commas; k and M are powers of 1,024", Value: "1k,10k,100k,1M"},
			&cli.StringFlag{Name: "collective", Usage: strings.Join(kinds, ", "), Value: "ring,halving,hierarchical-halving,all-to-all,hierarchical-all-to-all"},
			&cli.StringFlag{Name: "size", Usage: "the buffer of a host as in nccl-tests; permutation, incast: a message. A..B goes in steps of 4", Value: "1MiB,1GiB"},
			&cli.StringFlag{Name: "transport", Usage: "metaroce, rocev2, ideal", Value: "metaroce"},
			&cli.IntFlag{Name: "planes", Usage: "networks that the NIC's rate is divided over", Value: 8},
			&cli.StringFlag{Name: "rate", Usage: "of a NIC, all planes together", Value: "800Gbit"},
			&cli.StringFlag{Name: "delay", Usage: "of a link", Value: "1us"},
			&cli.IntFlag{Name: "oversubscribe", Usage: "hosts' links for each uplink of a leaf", Value: 1},
			&cli.StringFlag{Name: "loss", Usage: "share of packets lost on the way", Value: "0%"},
			&cli.StringFlag{Name: "fail", Usage: "what is lost: plane, spine, each also as plane=2; links=1%; several with commas"},
			&cli.IntFlag{Name: "qps", Usage: "rocev2: connections that a message is cut over", Value: 1},
			&cli.StringFlag{Name: "rto", Usage: "rocev2: retransmission timer", Value: "67ms"},
			&cli.IntFlag{Name: "group", Usage: "GPUs of a server, each with its NIC (hierarchical)", Value: 8},
			&cli.StringFlag{Name: "server-rate", Usage: "of each GPU to the others of its server", Value: "3600Gbit"},
			&cli.StringFlag{Name: "server-delay", Usage: "of a step in the server", Value: "1us"},
			&cli.IntFlag{Name: "senders", Usage: "incast", Value: 32},
			&cli.Uint64Flag{Name: "seed", Usage: "rocev2: of the hash that chooses ways", Value: 1},
			&cli.StringFlag{Name: "constants", Usage: "a table instead of the built-in one (tools/sim/scale/fit.yaml)"},
			&cli.IntFlag{Name: "validate", Usage: "run collectives at the packet level with at most so many hosts (64, 256, 1024) and print both levels' times"},
			&cli.StringFlag{Name: "fit", Usage: "print a table fitted to DIR's packet-level results (NAME.json with its plan NAME.yaml), or with --validate to its runs: `DIR`|-"},
			&cli.BoolFlag{Name: "json", Usage: "one object for each row, a line each, instead of tables"},
			&cli.StringFlag{Name: "csv", Usage: "write the rows into `FILE`"},
			&cli.StringFlag{Name: "plot", Usage: "write time by hosts into `FILE` (.svg or .png)"},
		},
		Action: e.simScale,
	}
}

// scaleRow is one collective at one size.
type scaleRow struct {
	Hosts      int           `json:"hosts"`
	Tiers      int           `json:"tiers"`
	Collective scale.Kind    `json:"collective"`
	Size       int64         `json:"size_bytes"`
	Transport  string        `json:"transport"`
	Time       scale.Time    `json:"time"`
	BusBps     float64       `json:"busbw_bps"`
	Share      float64       `json:"share_of_bound"`
	RTT        float64       `json:"rtt_s"`
	State      scale.State   `json:"nic"`
	Fail       scale.Failure `json:"fail"`
	Loss       float64       `json:"loss"`
}

// scaleAsk is the command line, read.
type scaleAsk struct {
	hosts       []int
	kinds       []scale.Kind
	sizes       []int64
	transports  []plan.TransportKind
	topo        func(n int) (plan.Topology, error)
	fail        scale.Failure
	loss        float64
	rto, inside float64
	serverBps   float64
	table       scale.Table
}

func (e *env) simScale(c *cli.Context) error {
	if c.NArg() > 0 {
		return fail.Usagef("%q: mroce sim scale takes flags only", c.Args().First())
	}
	table, err := scaleTable(c.String("constants"))
	if err != nil {
		return err
	}
	if c.IsSet("validate") || c.IsSet("fit") {
		return e.scaleValidate(c, table)
	}
	a, err := scaleParse(c)
	if err != nil {
		return err
	}
	a.table = table
	began := time.Now()
	rows, err := e.scaleRows(c, a)
	if err != nil {
		return err
	}
	if !c.Bool("json") {
		e.scaleTables(rows)
	} else if err := lines(e.out, rows); err != nil {
		return err
	}
	if f := c.String("csv"); f != "" {
		if err := scaleCSV(rows, f); err != nil {
			return err
		}
	}
	if f := c.String("plot"); f != "" {
		if err := scalePlot(rows, f); err != nil {
			return err
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(e.err, "%d rows in %.2f s, %d MB from the system\n", len(rows), time.Since(began).Seconds(), m.Sys>>20)
	if c.Context.Err() != nil {
		return exitCode(fail.Stopped)
	}
	return nil
}

func scaleTable(file string) (scale.Table, error) {
	if file == "" {
		return scale.Builtin(), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return scale.Table{}, fail.Usagef("cannot read the constants: %w", err)
	}
	t, err := scale.ParseTable(file, b)
	if err != nil {
		return t, fail.Usagef("%w", err)
	}
	return t, nil
}

// scaleRows computes all rows; Ctrl-C ends it with those that there are.
func (e *env) scaleRows(c *cli.Context, a *scaleAsk) ([]scaleRow, error) {
	var rows []scaleRow
	step, done := e.progress(len(a.hosts)*len(a.transports)*len(a.kinds)*len(a.sizes), "rows")
	defer done()
	for _, n := range a.hosts {
		topo, err := a.topo(n)
		if err != nil {
			return nil, fail.Usagef("--hosts: %w", err)
		}
		f, err := scale.NewFabric(topo, a.fail)
		if err != nil {
			return nil, fail.Usagef("%w", err)
		}
		for _, tr := range a.transports {
			t, err := scale.NewTransport(tr, a.table, c.Int("qps"), a.rto, a.loss)
			if err != nil {
				return nil, fail.Usagef("%w", err)
			}
			m := scale.NewModel(f, t, c.Uint64("seed"))
			for _, k := range a.kinds {
				for _, size := range a.sizes {
					if c.Context.Err() != nil {
						return rows, nil
					}
					x := scale.Collective{Kind: k, Size: size, Group: c.Int("group"), ServerBps: a.serverBps, ServerAlpha: a.inside, Senders: min(c.Int("senders"), n-1)}
					got, err := m.Run(x)
					if err != nil {
						return nil, fail.Usagef("%s of %d hosts: %w", k, n, err)
					}
					rows = append(rows, scaleRow{Hosts: n, Tiers: f.Tiers(), Collective: k, Size: size, Transport: string(tr), Time: got, BusBps: float64(size) * 8 / got.Seconds * got.Bus,
						Share: got.Bound / got.Seconds, RTT: f.RTT(f.Tiers()-1, t), State: m.State(x), Fail: a.fail, Loss: a.loss})
					step()
				}
			}
		}
	}
	return rows, nil
}

func scaleParse(c *cli.Context) (a *scaleAsk, err error) {
	a = &scaleAsk{}
	if a.hosts, err = scaleHosts(c.String("hosts")); err != nil {
		return nil, err
	}
	if a.sizes, err = scaleSizes(c.String("size")); err != nil {
		return nil, err
	}
	if a.kinds, err = words("--collective", c.String("collective"), scale.Kinds); err != nil {
		return nil, err
	}
	if a.transports, err = words("--transport", c.String("transport"), []plan.TransportKind{plan.MetaRoCE, plan.RoCEv2, plan.Ideal}); err != nil {
		return nil, err
	}
	if a.fail, err = scaleFail(c.String("fail")); err != nil {
		return nil, err
	}
	var errs []error
	note := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	rate, err := impair.ParseRate(c.String("rate"))
	note("rate", err)
	a.loss, err = impair.ParseShare(c.String("loss"))
	note("loss", err)
	delay, err := impair.ParseDuration(c.String("delay"))
	note("delay", err)
	rto, err := impair.ParseDuration(c.String("rto"))
	note("rto", err)
	inside, err := impair.ParseDuration(c.String("server-delay"))
	note("server-delay", err)
	server, err := impair.ParseRate(c.String("server-rate"))
	note("server-rate", err)
	for flag, lowest := range map[string]int{"planes": 1, "oversubscribe": 1, "qps": 1, "group": 2, "senders": 1} {
		if v := c.Int(flag); v < lowest || v > 1<<20 {
			errs = append(errs, fmt.Errorf("--%s %d is not in %d to %d", flag, v, lowest, 1<<20))
		}
	}
	if c.Int("planes") > 16 || c.Int("qps") > 256 {
		errs = append(errs, errors.New("16 planes and 256 connections at most"))
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, fail.Usagef("%w", errs[0])
	}
	a.rto, a.inside, a.serverBps = rto.Seconds(), inside.Seconds(), float64(server)
	a.topo = func(n int) (plan.Topology, error) {
		t, err := scale.Design(n, c.Int("planes"), c.Int("oversubscribe"), rate)
		t.Delay = delay
		return t, err
	}
	return a, nil
}

// words reads a list of known words.
func words[T ~string](flag, text string, known []T) (list []T, err error) {
	var names []string
	for _, k := range known {
		names = append(names, string(k))
	}
	for _, w := range strings.Split(text, ",") {
		if slices.Contains(names, w) {
			list = append(list, T(w))
		} else if near := labfile.Nearest(w, names); near != "" {
			return nil, fail.Usagef("%s: unknown %q; did you mean %q?", flag, w, near)
		} else {
			return nil, fail.Usagef("%s: unknown %q; there are %s", flag, w, strings.Join(names, ", "))
		}
	}
	return list, nil
}

func scaleHosts(text string) (list []int, err error) {
	for _, w := range strings.Split(text, ",") {
		num, unit := w, 1
		if s, ok := strings.CutSuffix(w, "k"); ok {
			num, unit = s, 1<<10
		} else if s, ok := strings.CutSuffix(w, "M"); ok {
			num, unit = s, 1<<20
		}
		n, err := strconv.Atoi(num)
		if err != nil || n < 1 || n > 1<<20/unit || n*unit < 2 {
			return nil, fail.Usagef("--hosts: %q is not a number from 2 to 1M such as 64, 10k or 1M", w)
		}
		list = append(list, n*unit)
	}
	return list, nil
}

func scaleSizes(text string) (list []int64, err error) {
	read := func(s string) (int64, error) {
		v, err := impair.ParseSize(s)
		if err == nil && v < 1 {
			err = errors.New("at least one byte")
		}
		if err != nil {
			return 0, fail.Usagef("--size: %w", err)
		}
		return int64(v), nil
	}
	for _, w := range strings.Split(text, ",") {
		from, to, is := strings.Cut(w, "..")
		lo, err := read(from)
		if err != nil {
			return nil, err
		}
		hi := lo
		if is {
			if hi, err = read(to); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, fail.Usagef("--size: %s goes down", w)
			}
		}
		for ; lo < hi; lo *= 4 {
			list = append(list, lo)
		}
		list = append(list, hi)
	}
	return list, nil
}

func scaleFail(text string) (f scale.Failure, err error) {
	if text == "" {
		return f, nil
	}
	for _, w := range strings.Split(text, ",") {
		name, value, is := strings.Cut(w, "=")
		n := 1
		if is && name != "links" {
			if n, err = strconv.Atoi(value); err != nil || n < 1 {
				return f, fail.Usagef("--fail: %q is not a number of them", w)
			}
		}
		switch name {
		case "plane":
			f.Planes = n
		case "spine":
			f.Spines = n
		case "links":
			if f.Links, err = impair.ParseShare(value); err != nil {
				return f, fail.Usagef("--fail: links: %w", err)
			}
		default:
			return f, fail.Usagef("--fail: unknown %q; there are plane, spine, plane=2, links=1%%", w)
		}
	}
	return f, nil
}

func scaleCSV(rows []scaleRow, file string) error {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("cannot write the rows: %w", err)
	}
	w := csv.NewWriter(out)
	_ = w.Write(strings.Split("hosts,collective,size_bytes,transport,seconds,bound_s,share_of_bound,busbw_bps,steps,latency_s,peers,qps,state_bytes,probes_per_s,"+
		"control_packets_per_s,plane_recovery_s,spine_recovery_s,method", ",")) // Flush tells of errors
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }
	for _, r := range rows {
		s := &r.State
		_ = w.Write([]string{strconv.Itoa(r.Hosts), string(r.Collective), strconv.FormatInt(r.Size, 10), r.Transport, num(r.Time.Seconds), num(r.Time.Bound), num(r.Share),
			num(r.BusBps), num(r.Time.Steps), num(r.Time.Latency), strconv.Itoa(s.Peers), strconv.Itoa(s.QPs), num(s.Bytes), num(s.Probes), num(s.Control),
			num(s.PlaneRecovery), num(s.SpineRecovery), r.Time.Method})
	}
	w.Flush()
	return errors.Join(w.Error(), out.Close())
}

func (e *env) scaleTables(rows []scaleRow) {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "collective\thosts\ttransport\tsize\ttime\tbus Gbit/s\t% of bound\tsteps\tlatency %\tmethod\t")
	kinds := map[string]bool{}
	for _, r := range rows {
		kinds[r.Transport] = true
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%.1f\t%.1f\t%.0f\t%.0f\t%s\t\n", r.Collective, r.Hosts, r.Transport, plan.Bytes(r.Size), seconds(r.Time.Seconds), r.BusBps/1e9, 100*r.Share,
			r.Time.Steps, 100*r.Time.Latency/r.Time.Seconds, r.Time.Method)
	}
	w.Flush()
	fmt.Fprintln(e.out)
	fmt.Fprintln(w, "each NIC: collective\thosts\ttransport\tpeers\tQPs\tstate\tof it paths\tprobes/s\tcontrol packets/s\tplane lost: back in\tRTT\tspine lost\tRTT\t")
	seen := map[string]bool{}
	over := false
	for i := len(rows) - 1; i >= 0; i-- { // the largest size
		r := &rows[i]
		key := fmt.Sprint(r.Collective, r.Hosts, r.Transport)
		if seen[key] {
			continue
		}
		seen[key] = true
		s := &r.State
		mark := ""
		if s.Over {
			mark, over = "*", true
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d%s\t%d\t%s\t%s\t%.0f\t%.3g M\t%s\t%.1f\t%s\t%.1f\t\n", r.Collective, r.Hosts, r.Transport, s.Peers, mark, s.QPs, megabytes(s.Bytes), megabytes(s.PathBytes),
			s.Probes, s.Control/1e6, seconds(s.PlaneRecovery), s.PlaneRTTs, seconds(s.SpineRecovery), s.SpineRTTs)
	}
	w.Flush()
	if over {
		fmt.Fprintln(e.out, "* more than the 4,096 associations that the reference engine keeps at a time")
	}
	if kinds[string(plan.MetaRoCE)] && kinds[string(plan.RoCEv2)] {
		fmt.Fprintln(e.out, "rocev2's times are lower bounds by theory, metaroce's hold what was measured packet by packet: they do not say which is faster (docs/sim-scale.md)")
	}
}

func megabytes(b float64) string {
	switch {
	case b >= 1e9:
		return fmt.Sprintf("%.1f GB", b/1e9)
	case b >= 1e6:
		return fmt.Sprintf("%.1f MB", b/1e6)
	}
	return fmt.Sprintf("%.1f kB", b/1e3)
}

func seconds(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.3f s", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.3f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f µs", s*1e6)
}
