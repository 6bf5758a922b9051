package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/fail"
)

func (e *env) managementCommands() []*cli.Command {
	flags := func(more ...cli.Flag) []cli.Flag {
		return append([]cli.Flag{
			jsonFlag(), labFlag(),
			&cli.StringFlag{Name: "nic", Usage: "only this NIC: HOST/mrN"},
		}, more...)
	}
	return append([]*cli.Command{
		{
			Name: "status", Usage: "daemons, NICs, planes and who uses them", Category: "Management",
			Description: example("nicemu status", "nicemu status --planes"),
			Flags:       flags(&cli.BoolFlag{Name: "planes", Usage: "a line for every plane, too: its wire, and what it receives and grants"}),
			Action:      e.status,
		},
		{
			Name: "stats", Usage: "counters", Category: "Management", Description: example("nicemu stats --watch"),
			Flags: flags(&cli.BoolFlag{Name: "watch", Usage: "rates, every second, until Ctrl-C"},
				&cli.DurationFlag{Name: "interval", Usage: "of --watch", Value: time.Second},
				&cli.BoolFlag{Name: "all", Usage: "show counters that are 0 too"}),
			Action: e.stats,
		},
		{
			Name: "paths", Usage: "peers and paths as the transport sees them", Category: "Management",
			Description: example("nicemu paths --nic a/mr0", "nicemu paths --entropies explicit:51000,51001 --plane 1"),
			Flags: flags(&cli.BoolFlag{Name: "all", Usage: "a line for every path, too"},
				&cli.StringFlag{Name: "entropies", Usage: "change where the paths' source ports come from: automatic, explicit:PORT,…, generated:FIRST[:STEP[:COUNT]]"},
				&cli.StringFlag{Name: "peer", Usage: "with --entropies: only towards this address"},
				&cli.IntFlag{Name: "plane", Usage: "with --entropies: only on this plane", Value: -1}), Action: e.paths,
		},
		{
			Name: "events", Usage: "what happened: planes, paths, peers", Category: "Management",
			Description: example("nicemu events --follow"),
			Flags:       flags(&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for more, until Ctrl-C"}),
			Action:      e.events,
		},
		{
			Name: "plane", Usage: "switch a plane of a NIC off and on", ArgsUsage: "up|down PLANE", Category: "Management",
			Description: example("nicemu plane down 2 --nic a/mr0", "nicemu plane up 2 --nic a/mr0"),
			Flags:       flags(), Action: e.plane, BashComplete: completeWords(func() []string { return []string{"up", "down"} }),
		},
		e.captureCommand(),
	}, e.pathCommands(flags)...)
}

// ask runs a command on all daemons meant and collects the parts of their answers.
func ask[T any](c *cli.Context, cmd string, args any) ([]T, []*target, error) {
	ts, err := targets(c.String("nic"), c.String("lab"))
	if err != nil {
		return nil, nil, err
	}
	var all []T
	for _, t := range ts {
		for _, nic := range t.asked() {
			var out T
			if err := t.call(cmd, nic, args, &out); err != nil {
				return nil, nil, err
			}
			all = append(all, out)
		}
	}
	return all, ts, nil
}

func (e *env) status(c *cli.Context) error {
	all, _, err := ask[api.Status](c, "status", nil)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printEach(all)
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(e.out)
		}
		fmt.Fprintf(e.out, "daemon %d, version %s, up %s, %s\n", s.Daemon.PID, s.Daemon.Version,
			(time.Duration(s.Daemon.UptimeSeconds) * time.Second).String(), s.Daemon.Socket)
		var rows [][]string
		for _, n := range s.NICs {
			up := 0
			for _, p := range n.Planes {
				if p.Link == "up" && p.Admin == "up" {
					up++
				}
			}
			rows = append(rows, []string{
				n.Name, n.State, strings.Join(n.Addrs, " "), fmt.Sprint(n.ActiveMTU), fmt.Sprintf("%d/%d", up, len(n.Planes)),
				fmt.Sprint(len(n.Contexts)), fmt.Sprint(n.Objects.QPs), fmt.Sprint(n.Objects.MRs),
			})
		}
		if err := columns(e.out, []string{"NIC", "STATE", "ADDRESS", "MTU", "PLANES", "PROGRAMS", "QPS", "MRS"}, rows); err != nil {
			return err
		}
		if c.Bool("planes") {
			fmt.Fprintln(e.out)
			if err := e.printPlanes(s.NICs); err != nil {
				return err
			}
		}
		for _, n := range s.NICs {
			if m := n.CM; m.IDs > 0 || m.Listeners > 0 {
				fmt.Fprintf(e.out, "%s: %d rdma_cm IDs, %d listeners, %d requests waiting\n", n.Name, m.IDs, m.Listeners, m.Waiting)
			}
			for _, x := range n.Contexts {
				fmt.Fprintf(e.out, "%s: %s (process %d): %d QPs, %d MRs%s\n", n.Name, x.Program, x.PID, x.Objects.QPs, x.Objects.MRs, dmaNote(x))
			}
			for _, p := range n.Planes {
				if p.Link != "up" || p.Admin != "up" {
					fmt.Fprintf(e.out, "%s: plane %d is down (link %s, switched %s), %s\n", n.Name, p.Plane, p.Link, p.Admin, p.Wire)
				}
			}
		}
	}
	return nil
}

// dmaNote says how a program's memory is reached, where that is not the usual way.
func dmaNote(x api.Context) string {
	if x.DMA == "process_vm" {
		return ""
	}
	note := ", DMA " + x.DMA
	if x.Stalls > 0 {
		note += fmt.Sprintf(" (%d calls not answered)", x.Stalls)
	}
	return note
}

// printPlanes prints a line for each plane: its wire, and what its receiving side measures and grants.
func (e *env) printPlanes(nics []api.NICStatus) error {
	gbits := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", v/1e9)
	}
	var rows [][]string
	for _, n := range nics {
		for _, p := range n.Planes {
			row := []string{n.Name, strconv.Itoa(p.Plane), p.Wire, p.Link, p.Admin, gbits(float64(p.RateBps)), micros(p.Noise), "-", "-", "-", "-"}
			if r := p.Receive; r != nil {
				copy(row[7:], []string{gbits(r.Rate), fmt.Sprintf("%.2f", r.Factor), strconv.Itoa(r.Senders), kib(int64(r.Grant))})
			}
			rows = append(rows, row)
		}
	}
	return columns(e.out, []string{"NIC", "PLANE", "WIRE", "LINK", "SWITCHED", "RATE Gbit/s", "NOISE µs", "RECEIVED Gbit/s", "GRANT FACTOR", "SENDERS", "GRANTS KiB"}, rows)
}

// printEach prints one object, or one per line for several daemons.
func (e *env) printEach(all any) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		fmt.Fprintf(e.out, "%s\n", p)
	}
	return nil
}

func (e *env) stats(c *cli.Context) error {
	all, ts, err := ask[api.Stats](c, "stats", nil)
	if err != nil {
		return err
	}
	if c.Bool("watch") {
		return e.watch(c, ts)
	}
	if c.Bool("json") {
		return e.printEach(all)
	}
	var rows [][]string
	row := func(who string, m map[string]uint64) {
		var names []string
		for k, v := range m {
			if v != 0 || c.Bool("all") {
				names = append(names, k)
			}
		}
		slices.Sort(names)
		for _, k := range names {
			rows = append(rows, []string{who, k, u64(m[k])})
		}
	}
	for _, s := range all {
		row("daemon", s.Daemon)
		for _, n := range s.NICs {
			row(n.Name, n.Counters)
			for _, p := range n.Planes {
				who := fmt.Sprintf("%s plane %d", n.Name, p.Plane)
				row(who, p.Counters)
				drops := map[string]uint64{}
				for k, v := range p.Drops {
					drops["mroce_wire_drops_total{reason="+k+"}"] = v
				}
				row(who, drops)
			}
			row(n.Name+" transport", numbers(n.Engine))
		}
	}
	return columns(e.out, []string{"OF", "COUNTER", "VALUE"}, rows)
}

// numbers are the whole numbers of a JSON object that another room defines.
func numbers(v any) map[string]uint64 {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	out := map[string]uint64{}
	for k, x := range m {
		if f, ok := x.(float64); ok && f >= 0 {
			out[k] = uint64(f)
		}
	}
	return out
}

// rate is one line of --watch.
type rate struct {
	NIC     string  `json:"nic"`
	Plane   int     `json:"plane"`
	Time    float64 `json:"time_seconds"`
	TxBits  float64 `json:"mroce_tx_bits_per_second"`
	RxBits  float64 `json:"mroce_rx_bits_per_second"`
	TxPkts  float64 `json:"mroce_tx_packets_per_second"`
	RxPkts  float64 `json:"mroce_rx_packets_per_second"`
	Dropped float64 `json:"mroce_dropped_packets_per_second"`
}

func (e *env) watch(c *cli.Context, ts []*target) error {
	type key struct {
		nic   string
		plane int
	}
	last := map[key]api.PlaneStats{}
	var lastAt time.Time
	every := max(c.Duration("interval"), 10*time.Millisecond)
	for first := true; ; first = false {
		at := time.Now()
		secs := at.Sub(lastAt).Seconds()
		var rates []rate
		for _, t := range ts {
			var s api.Stats
			if err := t.call("stats", "", nil, &s); err != nil {
				return err
			}
			for _, n := range s.NICs {
				if !t.means(n.Name) {
					continue
				}
				for _, p := range n.Planes {
					k := key{n.Name, p.Plane}
					was := last[k]
					last[k] = p
					per := func(name string) float64 { return float64(p.Counters[name]-was.Counters[name]) / secs }
					r := rate{
						NIC: n.Name, Plane: p.Plane, Time: float64(at.UnixNano()) / 1e9,
						TxBits: 8 * per("mroce_tx_bytes_total"), RxBits: 8 * per("mroce_rx_bytes_total"),
						TxPkts: per("mroce_tx_packets_total"), RxPkts: per("mroce_rx_packets_total"), Dropped: per("mroce_tx_dropped_total"),
					}
					for reason, v := range p.Drops {
						r.Dropped += float64(v-was.Drops[reason]) / secs
					}
					rates = append(rates, r)
				}
			}
		}
		lastAt = at
		if !first {
			if err := e.printRates(c, rates); err != nil {
				return err
			}
		}
		select {
		case <-c.Context.Done():
			return ended(c.Context)
		case <-time.After(every):
		}
	}
}

func (e *env) printRates(c *cli.Context, rates []rate) error {
	if c.Bool("json") {
		for _, r := range rates {
			if err := e.printJSON(r); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, 0, len(rates))
	for _, r := range rates {
		rows = append(rows, strings.Split(fmt.Sprintf("%s %d %.2f %.2f %.0f %.0f %.0f", r.NIC, r.Plane, r.TxBits/1e9, r.RxBits/1e9, r.TxPkts, r.RxPkts, r.Dropped), " "))
	}
	head := []string{"NIC", "PLANE", "TX Gbit/s", "RX Gbit/s", "TX packets/s", "RX packets/s", "DROPPED/s"}
	if err := columns(e.out, head, rows); err != nil {
		return err
	}
	fmt.Fprintln(e.out)
	return nil
}

func (e *env) events(c *cli.Context) error {
	ts, err := targets(c.String("nic"), c.String("lab"))
	if err != nil {
		return err
	}
	since := make([]uint64, len(ts))
	for {
		if err := e.newEvents(c, ts, since); err != nil {
			return err
		}
		if !c.Bool("follow") {
			return nil
		}
		select {
		case <-c.Context.Done():
			return ended(c.Context)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (e *env) newEvents(c *cli.Context, ts []*target, since []uint64) error {
	var all []api.Event
	for i, t := range ts {
		var ev api.Events
		if err := t.call("events", "", api.EventsArgs{Since: since[i]}, &ev); err != nil {
			return err
		}
		ev.Events = slices.DeleteFunc(ev.Events, func(v api.Event) bool { return !t.means(v.NIC) })
		if ev.Lost > 0 {
			e.note("%d older events are forgotten", ev.Lost)
		}
		since[i] = ev.Next
		all = append(all, ev.Events...)
	}
	slices.SortStableFunc(all, func(a, b api.Event) int { return int((a.Time - b.Time) * 1e6) })
	for _, ev := range all {
		if c.Bool("json") {
			if err := e.printJSON(ev); err != nil {
				return err
			}
			continue
		}
		at := time.Unix(0, int64(ev.Time*1e9)).Format("15:04:05.000")
		line := fmt.Sprintf("%s  %-8s  %-12s", at, ev.NIC, ev.Kind)
		if !strings.HasPrefix(ev.Kind, "assoc") { // an association is over all planes
			line += fmt.Sprintf("  plane %d", ev.Plane)
		}
		if strings.HasPrefix(ev.Kind, "path") {
			line += fmt.Sprintf("  path %d", ev.Path)
		}
		if ev.Peer != "" {
			line += "  peer " + ev.Peer
		}
		fmt.Fprintln(e.out, line)
	}
	return nil
}

func (e *env) plane(c *cli.Context) error {
	up, plane, err := planeArgs(c)
	if err != nil {
		return err
	}
	ts, err := targets(c.String("nic"), c.String("lab"))
	if err != nil {
		return err
	}
	for _, t := range ts {
		for _, nic := range t.asked() {
			if err := t.call("plane", nic, api.PlaneArgs{Plane: plane, Up: up}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// planeArgs reads "down 2" and "2 down": people mix them up, and nothing else can be meant.
func planeArgs(c *cli.Context) (up bool, plane int, err error) {
	args := c.Args().Slice()
	if len(args) != 2 {
		return false, 0, fail.Usagef("which plane, up or down? for example: %s 2 down", c.Command.HelpName)
	}
	if args[1] == "up" || args[1] == "down" {
		args[0], args[1] = args[1], args[0]
	}
	plane, err = strconv.Atoi(args[1])
	if err != nil || plane < 0 || args[0] != "up" && args[0] != "down" {
		return false, 0, fail.Usagef("%q is no plane and up or down; for example: %s 2 down", strings.Join(c.Args().Slice(), " "), c.Command.HelpName)
	}
	return args[0] == "up", plane, nil
}

// wait sleeps, unless the command is stopped.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
