package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/bed"
	"github.com/metaroce/metaroce/tools/coll"
)

// collectives are the names that the ranks know.
var collectives = []string{"all-reduce", "all-reduce-tree", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv"}

func (e *env) collbenchCommand() *cli.Command {
	return &cli.Command{
		Name: "collbench", Usage: "collectives through a net plugin of RCCL and NCCL, as their proxy thread calls it, without a GPU",
		ArgsUsage: "[" + strings.Join(collectives, "|") + "]...",
		Description: "  mroce collbench --ranks 4 --loss 1% all-reduce all-to-all\n  mroce collbench --net socket all-reduce\n" +
			"  mroce collbench --here --net libnccl-net.so all-reduce\n\n" +
			"Makes a lab of a host for each rank, unless --lab names one that is up or --here is given. The columns are those of nccl-tests;\n" +
			"each size is checked once, on all ranks. Between ranks: 8 steps under way in a connection, slices of 512 KiB.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "ranks", Usage: "processes, 2 to 16", Value: 2},
			&cli.StringFlag{Name: "net", Usage: "metaroce (our plugin), socket (several TCP sockets a connection) or a plugin's file", Value: "metaroce"},
			&cli.IntFlag{Name: "table", Usage: "version of the plugin's table, 8 to 12", Value: 12},
			&cli.StringFlag{Name: "min", Aliases: []string{"b"}, Usage: "smallest size", Value: "8"},
			&cli.StringFlag{Name: "max", Aliases: []string{"e"}, Usage: "largest size", Value: "4MiB"},
			&cli.Float64Flag{Name: "factor", Aliases: []string{"f"}, Usage: "from a size to the next", Value: 2},
			&cli.IntFlag{Name: "iters", Aliases: []string{"n"}, Usage: "iterations of each size", Value: 20},
			&cli.IntFlag{Name: "warmup", Aliases: []string{"w"}, Usage: "iterations before them", Value: 1},
			&cli.Float64Flag{Name: "seconds", Usage: "fewer iterations where they would take longer than this; 0: never", Value: 1},
			&cli.StringFlag{Name: "type", Aliases: []string{"d"}, Usage: "float, double, int32 or uint8", Value: "float"},
			&cli.IntFlag{Name: "channels", Usage: "connections side by side, 1 to 4", Value: 1},
			&cli.IntFlag{Name: "group", Usage: "parts of each receive, 1 to 8: grouped receives", Value: 1},
			&cli.StringFlag{Name: "slice", Usage: "size of a step", Value: "512KiB"},
			&cli.BoolFlag{Name: "no-check", Usage: "do not look at what arrived"},
			&cli.IntFlag{Name: "connections", Usage: "instead of collectives: open so many connections from each rank to the next, use and close them"},
			&cli.StringFlag{Name: "lab", Usage: "hosts of a lab that is up, a rank each, in order of names; the ranks go round", EnvVars: []string{"MR_LAB"}},
			&cli.BoolFlag{Name: "here", Usage: "no lab: ranks on this machine, with the devices that it has"},
			&cli.StringFlag{Name: "wire", Usage: "of the lab that is made: tap, udp, mem or auto", Value: "auto"},
			&cli.IntFlag{Name: "planes", Usage: "likewise", Value: bed.Planes},
			&cli.StringFlag{Name: "loss", Usage: "likewise: 1%"},
			&cli.BoolFlag{Name: "json", Usage: "objects, a line each, instead of a table"},
		},
		Action: e.collbench, BashComplete: completeWords(collectives),
	}
}

// bytesFlag reads a size with or without a unit.
func bytesFlag(c *cli.Context, name string) (string, error) {
	text := strings.TrimSpace(c.String(name))
	units := []struct {
		suffix string
		by     uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"B", 1}, {"", 1}}
	for _, u := range units {
		digits, is := strings.CutSuffix(text, u.suffix)
		if !is {
			continue
		}
		v, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 40)
		if err != nil || v > 1<<40/u.by {
			break
		}
		return strconv.FormatUint(v*u.by, 10), nil
	}
	return "", fail.Usagef("--%s %q is no size; 64KiB is one", name, text)
}

// libraries is the directory of what is built in C.
func libraries() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	dirs := []string{os.Getenv("MR_LIB"), filepath.Join(filepath.Dir(exe), "../lib/mroce"), filepath.Join(filepath.Dir(exe), "../lib")}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "collbench-rank")); err == nil && d != "" {
			return filepath.Abs(d)
		}
	}
	return "", fail.Lackf("collbench-rank is neither in %s nor in MR_LIB; build it with `make`", strings.Join(dirs[1:], " nor in "))
}

func (e *env) collbench(c *cli.Context) error {
	lib, err := libraries()
	if err != nil {
		return err
	}
	o := coll.Options{Rank: filepath.Join(lib, "collbench-rank"), Ranks: c.Int("ranks"), Args: []string{"--net", plugin(c.String("net"), lib)}}
	if o.Ranks < 2 || o.Ranks > coll.RanksMax {
		return fail.Usagef("--ranks %d: 2 to %d", o.Ranks, coll.RanksMax)
	}
	if err := collArgs(c, &o); err != nil {
		return err
	}
	finish, err := e.ranks(c, &o, lib)
	if err != nil {
		return err
	}
	t := &collTable{env: e, json: c.Bool("json")}
	o.Line = t.line
	err = errors.Join(coll.Run(c.Context, o), finish())
	if c.Context.Err() != nil {
		fmt.Fprintln(e.err, "mroce: stopped; results are partial")
		return exitCode(fail.Stopped)
	}
	if err != nil {
		return err
	}
	return t.end()
}

func plugin(net, lib string) string {
	if net == "metaroce" {
		return filepath.Join(lib, "librccl-net.so")
	}
	return net
}

// collArgs are what all ranks are told.
func collArgs(c *cli.Context, o *coll.Options) error {
	names := c.Args().Slice()
	for _, n := range names {
		if !slices.Contains(collectives, n) {
			return fail.Usagef("no collective %q; there are %s", n, strings.Join(collectives, ", "))
		}
	}
	if len(names) == 0 {
		names = []string{"all-reduce"}
	}
	o.Args = append(o.Args, "--colls", strings.Join(names, ","))
	for _, f := range []string{"min", "max", "slice"} {
		v, err := bytesFlag(c, f)
		if err != nil {
			return err
		}
		o.Args = append(o.Args, "--"+f, v)
	}
	for _, f := range []struct {
		name        string
		least, most int
	}{{"table", 8, 12}, {"iters", 1, 1000000}, {"warmup", 0, 1000}, {"channels", 1, 4}, {"group", 1, 8}} {
		v := c.Int(f.name)
		if v < f.least || v > f.most {
			return fail.Usagef("--%s %d: %d to %d", f.name, v, f.least, f.most)
		}
		o.Args = append(o.Args, "--"+f.name, strconv.Itoa(v))
	}
	if types := []string{"float", "double", "int32", "uint8"}; !slices.Contains(types, c.String("type")) {
		return fail.Usagef("--type %q: %s", c.String("type"), strings.Join(types, ", "))
	}
	if c.Float64("factor") <= 1 {
		return fail.Usagef("--factor %v is not above 1", c.Float64("factor"))
	}
	o.Args = append(o.Args, "--factor", fmt.Sprint(c.Float64("factor")), "--seconds", fmt.Sprint(c.Float64("seconds")), "--type", c.String("type"))
	if c.Bool("no-check") {
		o.Args = append(o.Args, "--check", "0")
	}
	if n := c.Int("connections"); n > 0 {
		o.Args = append(o.Args, "--connections", strconv.Itoa(n))
	}
	return nil
}

// ranks decides where the ranks run; what it returns cleans up.
func (e *env) ranks(c *cli.Context, o *coll.Options, lib string) (func() error, error) {
	nothing := func() error { return nil }
	port := 20000 + os.Getpid()%20000
	if c.Bool("here") {
		o.Root = fmt.Sprintf("127.0.0.1:%d", port)
		o.Command = func(ctx context.Context, _ int, program ...string) *exec.Cmd {
			return exec.CommandContext(ctx, program[0], program[1:]...)
		}
		return nothing, nil
	}
	nicemu := filepath.Join(filepath.Dir(lib), "bin", "nicemu")
	if exe, err := os.Executable(); err == nil {
		nicemu = filepath.Join(filepath.Dir(exe), "nicemu")
	}
	if _, err := os.Stat(nicemu); err != nil {
		return nil, fail.Lackf("no nicemu beside mroce to make a lab with; build it with `make`, or use --here")
	}
	if lab := c.String("lab"); lab != "" {
		hosts, err := labHosts(c.Context, nicemu, lab)
		if err != nil {
			return nil, err
		}
		o.Root = fmt.Sprintf("%s:%d", hosts[0].Addr, port)
		o.Command = func(ctx context.Context, rank int, program ...string) *exec.Cmd {
			args := append([]string{"lab", "exec", "--lab", lab, hosts[rank%len(hosts)].Name, "--"}, program...)
			return exec.CommandContext(ctx, nicemu, args...)
		}
		return nothing, nil
	}
	impair := ""
	if l := c.String("loss"); l != "" {
		impair = "loss: " + l
	}
	b, err := bed.New(nicemu, bed.Options{Wire: c.String("wire"), Hosts: o.Ranks, Planes: c.Int("planes"), Impair: impair, NoVeth: true})
	if err != nil {
		return nil, err
	}
	o.Root = fmt.Sprintf("%s:%d", bed.HostA, b.NextPort())
	o.Command = func(ctx context.Context, rank int, program ...string) *exec.Cmd {
		return b.Command(ctx, bed.Host(rank), program...)
	}
	return func() error { b.Close(); return b.Failure }, nil
}

// labHost is a host of a lab as `nicemu lab ls --json` tells it.
type labHost struct{ Name, Addr string }

func labHosts(ctx context.Context, nicemu, lab string) ([]labHost, error) {
	out, err := exec.CommandContext(ctx, nicemu, "lab", "ls", "--json").Output()
	if err != nil {
		return nil, fail.Failf("nicemu lab ls: %w", err)
	}
	var hosts []labHost
	for line := range strings.Lines(string(out)) {
		var l struct {
			Name  string
			Hosts []struct {
				Name      string
				Addresses []string
			}
		}
		if json.Unmarshal([]byte(line), &l) != nil || l.Name != lab {
			continue
		}
		for _, h := range l.Hosts {
			if len(h.Addresses) > 0 {
				hosts = append(hosts, labHost{h.Name, h.Addresses[0]})
			}
		}
	}
	if len(hosts) < 1 {
		return nil, fail.Usagef("no lab %q is up, or it has no hosts; nicemu lab ls shows them", lab)
	}
	return hosts, nil
}

// collTable writes what rank 0 measures.
type collTable struct {
	*env
	json  bool
	rows  int
	wrong int64
	sum   float64
}

func (t *collTable) line(head *coll.Head, row *coll.Row, storm *coll.Storm, text json.RawMessage) error {
	if row != nil {
		t.rows++
		t.wrong += max(0, row.Wrong)
		t.sum += row.BusBW
	}
	if t.json {
		_, err := fmt.Fprintf(t.out, "%s\n", text)
		return err
	}
	switch {
	case head != nil:
		fmt.Fprintf(t.out, "# net %s (%s), table %d, %d ranks, %d channels, groups of %d, slices of %d bytes\n",
			head.Net, head.Device, head.Table, head.Ranks, head.Channels, head.Group, head.Slice)
	case row != nil:
		t.row(row)
	case storm != nil:
		fmt.Fprintf(t.out, "# %d connections a rank: opened in %.2f s, used in %.2f s, closed in %.2f s\n", storm.Connections, storm.Open, storm.Use, storm.Close)
	}
	return nil
}

func (t *collTable) row(row *coll.Row) {
	if t.rows == 1 {
		fmt.Fprintf(t.out, "#\n#%12s %12s %9s %8s %6s %10s %8s %8s %7s\n", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
		fmt.Fprintf(t.out, "#%12s %12s %9s %8s %6s %10s %8s %8s %7s\n", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
	}
	wrong := strconv.FormatInt(row.Wrong, 10)
	if row.Wrong < 0 {
		wrong = "N/A"
	}
	fmt.Fprintf(t.out, "%13d %12d %9s %8s %6d %10.2f %8.2f %8.2f %7s   # %s\n", row.Size, row.Count, row.Type, row.RedOp, row.Root,
		row.Seconds*1e6, row.AlgBW/1e9, row.BusBW/1e9, wrong, row.Collective)
}

func (t *collTable) end() error {
	if t.rows > 0 && !t.json {
		state := "OK"
		if t.wrong > 0 {
			state = "FAILED"
		}
		fmt.Fprintf(t.out, "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %.4g\n", t.wrong, state, t.sum/float64(t.rows)/1e9)
	}
	if t.wrong > 0 {
		return fail.Failf("%d values are wrong", t.wrong)
	}
	return nil
}
