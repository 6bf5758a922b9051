package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/impair"
)

// The commands that change and probe paths: probe, deny, allow, profile, paths --entropies.

func (e *env) pathCommands(flags func(...cli.Flag) []cli.Flag) []*cli.Command {
	peer := func() cli.Flag {
		return &cli.StringFlag{Name: "peer", Usage: "only paths to this peer's address"}
	}
	port := func() cli.Flag {
		return &cli.UintFlag{Name: "source-port", Usage: "an entropy instead of a path: this UDP source port, to all peers"}
	}
	plane := func(what string) cli.Flag { return &cli.IntFlag{Name: "plane", Usage: what, Value: -1} }
	return []*cli.Command{
		{
			Name: "probe", Usage: "send probes on one path of a peer and print the round trips", ArgsUsage: "PEER", Category: "Management",
			Description: example("nicemu probe 10.0.0.2 --plane 1 --path 5 --nic a/mr0", "nicemu probe 10.0.0.2 --source-port 51000 --size 1KiB"),
			Flags: flags(&cli.IntFlag{Name: "plane", Usage: "on this plane"}, &cli.IntFlag{Name: "path", Usage: "on this path of it"},
				&cli.UintFlag{Name: "source-port", Usage: "with this entropy instead of the path's own"},
				&cli.StringFlag{Name: "size", Usage: "bytes of the packet from BTH to ICRC; the longest data packet unless given"},
				&cli.BoolFlag{Name: "control", Usage: "in the control class (DSCP 48) instead of the data's"},
				&cli.IntFlag{Name: "count", Usage: "how many", Value: 3},
				&cli.DurationFlag{Name: "timeout", Usage: "how long to wait for each answer", Value: time.Second}),
			Action: e.probe,
		},
		{
			Name: "deny", Usage: "take a path or an entropy out of use", ArgsUsage: "[PLANE/PATH]", Category: "Management",
			Description: example("nicemu deny 1/5 --peer 10.0.0.2 --nic a/mr0", "nicemu deny --source-port 51000 --plane 1"),
			Flags:       flags(peer(), port(), plane("with --source-port: only on this plane")),
			Action:      func(c *cli.Context) error { return e.setPaths(c, "deny") },
		},
		{
			Name: "allow", Usage: "put denied and quarantined paths back into use", ArgsUsage: "[PLANE/PATH | all]", Category: "Management",
			Description: example("nicemu allow 1/5 --peer 10.0.0.2 --nic a/mr0", "nicemu allow all"),
			Flags:       flags(peer(), port(), plane("with --source-port: only on this plane")),
			Action:      func(c *cli.Context) error { return e.setPaths(c, "allow") },
		},
		{
			Name: "profile", Usage: "congestion profiles", Category: "Management", Description: example("nicemu profile list"),
			Subcommands: []*cli.Command{
				{Name: "list", Usage: "the profiles that there are", Description: example("nicemu profile list"), Flags: flags(), Action: e.profileList},
				{Name: "show", Usage: "the profile of each NIC", Description: example("nicemu profile show --nic a/mr0"), Flags: flags(), Action: e.profileShow},
				{
					Name: "set", Usage: "change it while data flows", ArgsUsage: "NAME",
					Description: example("nicemu profile set polite --nic a/mr0", "nicemu profile set fixed --window 256KiB --peer 10.0.0.2"),
					Flags: flags(&cli.StringFlag{Name: "peer", Usage: "only towards this address; without it also for peers to come"},
						&cli.StringFlag{Name: "window", Usage: "fixed: the window of a plane"},
						&cli.StringFlag{Name: "target", Usage: "delay-ecn, polite: the queue delay to stay under; by the wire unless given"}),
					Action: e.profileSet,
				},
			},
		},
	}
}

// askPaths is ask for commands that each NIC does or refuses. rest is what to end with once the answers are printed: an
// error of exit code 4 when some NICs did as they were told and others did not.
func askPaths[T interface{ Failed() (nic, why string) }](c *cli.Context, cmd string, args any) (rows []T, rest, err error) {
	ts, err := targets(c.String("nic"), c.String("lab"))
	if err != nil {
		return nil, nil, err
	}
	var failed []string
	var refused, stranger error
	for _, t := range ts {
		for _, nic := range t.asked() {
			var some []T
			switch err := t.call(cmd, nic, args, &some); {
			case errors.Is(err, errNoPeer):
				stranger = err
			case err != nil:
				refused = err
				failed = append(failed, err.Error())
			}
			rows = append(rows, some...)
		}
	}
	if len(rows) == 0 {
		return nil, nil, cmp.Or(refused, stranger)
	}
	for _, r := range rows {
		if nic, why := r.Failed(); why != "" {
			failed = append(failed, nic+": "+why)
		}
	}
	if len(failed) > 0 {
		rest = fail.New(fail.Partial, "done in part; %s", strings.Join(failed, "; "))
	}
	return rows, rest, nil
}

func optional(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func (e *env) setPaths(c *cli.Context, cmd string) error {
	a := api.PathArgs{Peer: c.String("peer")}
	args := c.Args().Slice()
	port := c.Uint("source-port")
	switch {
	case c.IsSet("source-port"):
		if len(args) > 0 || port == 0 || port > 65535 || a.Peer != "" {
			return fail.Usagef("an entropy is a port from 1 to 65535, of all paths and peers; for example: nicemu %s --source-port 51000", cmd)
		}
		a.SourcePort, a.Plane = uint16(port), optional(c.Int("plane"))
	case len(args) == 1 && args[0] == "all" && cmd == "allow":
	case len(args) == 1:
		plane, path, err := planePath(args[0])
		if err != nil {
			return fail.Usagef("%q is no path: PLANE/PATH, as `nicemu paths --all` lists them; for example: nicemu %s 1/5", args[0], cmd)
		}
		a.Plane, a.Path = &plane, &path
	default:
		return fail.Usagef("which path? for example: nicemu %s 1/5, or nicemu %s --source-port 51000", cmd, cmd)
	}
	all, rest, err := askPaths[api.PathChange](c, cmd, a)
	if err != nil {
		return err
	}
	return cmp.Or(e.printChanges(c, all), rest)
}

// printChanges says how many paths changed; none is worth a word.
func (e *env) printChanges(c *cli.Context, all []api.PathChange) error {
	n := 0
	failed := false
	for _, x := range all {
		n += x.Changed
		failed = failed || x.Error != ""
		if c.Bool("json") {
			if err := e.printJSON(x); err != nil {
				return err
			}
		}
	}
	if n == 0 && !failed {
		e.note("nothing changed for the peers that there are; `nicemu paths --all` lists them")
	}
	return nil
}

// planePath reads PLANE/PATH.
func planePath(s string) (plane, path int, err error) {
	a, b, _ := strings.Cut(s, "/")
	if plane, err = strconv.Atoi(a); err == nil {
		path, err = strconv.Atoi(b)
	}
	if err == nil && (plane < 0 || path < 0) {
		err = strconv.ErrRange
	}
	return plane, path, err
}

// entropies changes where the entropies of paths come from.
func (e *env) entropies(c *cli.Context) error {
	a, err := entropyArgs(c.String("entropies"))
	if err != nil {
		return err
	}
	a.Peer, a.Plane = c.String("peer"), optional(c.Int("plane"))
	_, rest, err := askPaths[api.PathChange](c, "entropies", a)
	return cmp.Or(err, rest)
}

// entropyArgs reads automatic, explicit:PORT,PORT… or generated:FIRST[:STEP[:COUNT]].
func entropyArgs(s string) (a api.EntropyArgs, err error) {
	wrong := func() (api.EntropyArgs, error) {
		return a, fail.Usagef("--entropies %s: want automatic, explicit:51000,51001 or generated:49152:8:16 (first port, step, number of paths)", s)
	}
	mode, rest, _ := strings.Cut(s, ":")
	a.Mode = mode
	var ns []uint64
	for _, w := range strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ':' }) {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return wrong()
		}
		ns = append(ns, n)
	}
	switch {
	case mode == "automatic" && len(ns) == 0:
	case mode == "explicit" && len(ns) > 0:
		for _, n := range ns {
			a.List = append(a.List, uint16(n))
		}
	case mode == "generated" && len(ns) > 0 && len(ns) <= 3:
		ns = append(ns, 0, 0)
		a.First, a.Step, a.Count = uint16(ns[0]), uint16(ns[1]), int(ns[2])
	default:
		return wrong()
	}
	return a, nil
}

func (e *env) probe(c *cli.Context) error {
	a := api.ProbeArgs{Peer: c.Args().First(), Plane: c.Int("plane"), Path: c.Int("path"), SourcePort: uint16(c.Uint("source-port")),
		Control: c.Bool("control"), Timeout: c.Duration("timeout").Seconds()}
	if _, err := netip.ParseAddr(a.Peer); err != nil || c.NArg() != 1 {
		return fail.Usagef("which peer? its address; for example: nicemu probe 10.0.0.2 --plane 1 --path 5")
	}
	if s := c.String("size"); s != "" {
		n, err := impair.ParseSize(s)
		if err != nil || n == 0 {
			return fail.Usagef("--size %s: it takes a size such as 1KiB", s)
		}
		a.Bytes = n
	}
	if c.Uint("source-port") > 65535 || c.Int("count") < 1 || a.Timeout <= 0 || a.Timeout > 60 {
		return fail.Usagef("a port is at most 65535, --count at least 1, --timeout up to 60s")
	}
	t, nic, err := e.oneNIC(c, a.Peer)
	if err != nil {
		return err
	}
	var all []api.Probe
	answered := 0
	for range c.Int("count") {
		p, err := probeOnce(c, t, nic, a)
		if err != nil {
			return err
		}
		if p.Answered {
			answered++
		}
		if all = append(all, p); c.Bool("json") {
			if err := e.printJSON(p); err != nil {
				return err
			}
		}
	}
	if !c.Bool("json") {
		if err := e.printProbes(all); err != nil {
			return err
		}
	}
	switch answered {
	case len(all):
		return nil
	case 0:
		return fail.Failf("%s does not answer on path %d of plane %d", a.Peer, a.Path, a.Plane)
	}
	return fail.New(fail.Partial, "%d of %d probes were answered", answered, len(all))
}

// probeOnce sends a probe and waits for what becomes of it.
func probeOnce(c *cli.Context, t *target, nic string, a api.ProbeArgs) (p api.Probe, err error) {
	peer, plane, path := a.Peer, a.Plane, a.Path
	if err = t.call("probe", nic, a, &p); err != nil {
		return p, err
	}
	for gap := time.Millisecond; !p.Done; gap = min(2*gap, 50*time.Millisecond) {
		if err = wait(c.Context, gap); err != nil {
			return p, err
		}
		if err = t.call("probe", nic, api.ProbeArgs{ID: p.ID}, &p); err != nil {
			return p, err
		}
	}
	p.Peer, p.Plane, p.Path = peer, plane, path
	return p, nil
}

func (e *env) printProbes(all []api.Probe) error {
	var rows [][]string
	for _, p := range all {
		rtt := "lost"
		if p.Answered {
			rtt = micros(p.RTT)
		}
		rows = append(rows, []string{p.NIC, p.Peer, strconv.Itoa(p.Plane), strconv.Itoa(p.Path), strconv.Itoa(p.SourcePort), strconv.Itoa(p.Bytes), rtt})
	}
	return columns(e.out, []string{"NIC", "PEER", "PLANE", "PATH", "SOURCE PORT", "BYTES", "RTT µs"}, rows)
}

// oneNIC finds the NIC to probe from: the one named, or the only one that is not the peer.
func (e *env) oneNIC(c *cli.Context, peer string) (*target, string, error) {
	ts, err := targets(c.String("nic"), c.String("lab"))
	if err != nil {
		return nil, "", err
	}
	var t *target
	var names []string
	for _, x := range ts {
		for _, n := range x.nics {
			own := false
			for _, a := range n.Addrs {
				own = own || a == peer
			}
			if !own || len(x.nics) == 1 && len(ts) == 1 {
				t, names = x, append(names, n.Name)
			}
		}
	}
	if len(names) != 1 {
		return nil, "", fail.Usagef("from which NIC? --nic: %s", strings.Join(names, ", "))
	}
	return t, names[0], nil
}

func (e *env) profileList(c *cli.Context) error {
	all, _, err := askPaths[api.Profiles](c, "profile", api.ProfileArgs{})
	if err != nil {
		return err
	}
	var rows [][]string
	if len(all) > 0 { // all NICs know the same ones
		for _, x := range all[0].Known {
			if c.Bool("json") {
				if err := e.printJSON(x); err != nil {
					return err
				}
			}
			rows = append(rows, []string{x.Name, x.About})
		}
	}
	if c.Bool("json") {
		return nil
	}
	return columns(e.out, []string{"PROFILE", "WHAT IT DOES"}, rows)
}

func (e *env) profileShow(c *cli.Context) error {
	all, rest, err := askPaths[api.Profiles](c, "profile", api.ProfileArgs{})
	if err != nil {
		return err
	}
	return cmp.Or(e.printProfiles(c, all), rest)
}

func (e *env) printProfiles(c *cli.Context, all []api.Profiles) error {
	var rows [][]string
	for _, p := range all {
		if c.Bool("json") {
			if err := e.printJSON(p); err != nil {
				return err
			}
			continue
		}
		if p.Error != "" { // it is in the message
			continue
		}
		window, target := "-", "by the wire"
		if p.Window > 0 {
			window, target = kib(int64(p.Window)), "-"
		} else if p.Target > 0 {
			target = micros(p.Target)
		}
		rows = append(rows, []string{p.NIC, p.Name, window, target})
	}
	if c.Bool("json") {
		return nil
	}
	return columns(e.out, []string{"NIC", "PROFILE", "WINDOW KiB", "TARGET µs"}, rows)
}

func (e *env) profileSet(c *cli.Context) error {
	a := api.ProfileArgs{Peer: c.String("peer"), Name: c.Args().First()}
	if c.NArg() != 1 {
		return fail.Usagef("which profile? for example: nicemu profile set polite; `nicemu profile list` names them")
	}
	if s := c.String("window"); s != "" {
		n, err := impair.ParseSize(s)
		if err != nil {
			return fail.Usagef("--window %s: it takes a size such as 256KiB", s)
		}
		a.Window = n
	}
	if s := c.String("target"); s != "" {
		d, err := impair.ParseDuration(s)
		if err != nil {
			return fail.Usagef("--target %s: it takes a time such as 50us", s)
		}
		a.Target = d.Seconds()
	}
	all, rest, err := askPaths[api.Profiles](c, "profile", a)
	if err != nil {
		return err
	}
	if !c.Bool("json") && a.Peer != "" {
		fmt.Fprintf(e.out, "%s: %s\n", a.Peer, a.Name)
		return rest
	}
	return cmp.Or(e.printProfiles(c, all), rest)
}
