//go:build dpdk

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"github.com/yerden/go-dpdk/eal"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
	"github.com/metaroce/metaroce/refimpl/wire"
)

func (e *env) daemonCommand() *cli.Command {
	return &cli.Command{
		Name: serve.DaemonCommand, Hidden: true, Usage: "serve a configuration that `up` wrote", ArgsUsage: "FILE",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "recorded", Usage: "begin once a byte on stdin says that the process is recorded"}},
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return fail.Usagef("which configuration?")
			}
			if c.Bool("recorded") {
				if err := serve.WaitRecorded(); err != nil {
					return err
				}
			}
			return runDaemon(c.Context, c.Args().First())
		},
	}
}

// runDaemon is the daemon from the start of DPDK's environment to its end.
func runDaemon(ctx context.Context, path string) (err error) {
	cfg, err := readConfig(path)
	if err != nil {
		return fail.Failf("cannot read the daemon's configuration: %w", err)
	}
	if err := startEAL(cfg.EAL); err != nil {
		return err
	}
	defer endEAL(cfg.EAL)
	ports, mtu := 0, 0
	for i, n := range cfg.NICs {
		if i == 0 || cfg.Shards <= 1 { // else they share the first one's
			ports += len(n.Planes)
		}
		for _, w := range n.Planes {
			mtu = max(mtu, w.MTU)
		}
	}
	memory, err := wire.NewMemory(ports, mtu, cfg.Shards)
	if err != nil {
		return fail.Lackf("%w; give more: `-- -m MEGABYTES`, or huge pages", err)
	}
	var open []*wire.Port
	defer func() {
		for _, p := range slices.Backward(open) { // a port's first NIC last
			err = errors.Join(err, p.Close())
		}
	}()
	first := map[string]*wire.Port{} // of ports that NICs share
	return serve.Run(ctx, &cfg.Config, serve.Host{
		OpenWire: func(n *serve.NIC, _ int, w serve.Wire) (device.Port, error) {
			o := wire.Options{
				MTU: w.MTU, PacketMax: serve.PacketMax(w.MTU, n.Addrs), MAC: serve.MAC(n.GUID), Memory: memory, Busy: cfg.Busy, Shards: cfg.Shards,
				Noise: (*mono.Duration)(w.Noise), Note: func(s string) { fmt.Fprintln(os.Stderr, s) },
			}
			var p *wire.Port
			var err error
			if lead := first[w.URL]; lead != nil && cfg.Shards > 1 && cfg.NICs[0].Name != n.Name {
				p, err = wire.Share(lead, slices.IndexFunc(cfg.NICs, func(x serve.NIC) bool { return x.Name == n.Name }), o)
			} else if p, err = wire.Open(w.URL, o); err == nil {
				first[w.URL] = p
			}
			if err != nil {
				return nil, refusal(err)
			}
			open = append(open, p)
			return p, nil
		},
		Tune: func(d *daemon.Config) {
			d.BusyPoll = cfg.Busy
			d.Loops = cfg.Shards
			d.LoopThread = func(i int) error {
				if err := bind(cfg.Cores, i); err != nil {
					return fail.Failf("the loop's thread: %w", err)
				}
				return nil
			}
		},
	})
}

// bind makes the calling thread, the one of loop i, DPDK's, on its core.
func bind(cores []int, i int) error {
	if len(cores) == 0 {
		return dpdkx.BindThread(-1)
	}
	return dpdkx.BindThread(cores[i%len(cores)])
}

// refusal gives an error of a wire its exit code.
func refusal(err error) error {
	switch {
	case errors.Is(err, wire.ErrNoDevice), errors.Is(err, wire.ErrMemory):
		return fail.Lackf("%w", err)
	case errors.Is(err, wire.ErrURL):
		return fail.Usagef("%w", err)
	}
	return fail.Failf("%w", err)
}

// startEAL starts DPDK's environment. What it says goes to the log; its last complaint is the message when it fails.
func startEAL(args []string) error {
	fd, err := unix.MemfdCreate("eal", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	said := os.NewFile(uintptr(fd), "eal")
	defer said.Close()
	if err := dpdkx.LogInto(said); err != nil {
		return err
	}
	restore, err := divert(said) // EAL prints its own usage, getopt its complaints
	if err != nil {
		return err
	}
	_, err = eal.Init(args)
	restore()
	_, _ = said.Seek(0, io.SeekStart)
	text, _ := io.ReadAll(said)
	if err == nil {
		fmt.Fprint(os.Stderr, string(text))
		return dpdkx.LogInto(os.Stderr)
	}
	return ealError(args, string(text), err)
}

// divert lets what C prints go into f, until restore.
func divert(f *os.File) (restore func(), err error) {
	var saved [2]int
	for i := range saved {
		if saved[i], err = unix.FcntlInt(uintptr(i+1), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, err
		}
		if err = unix.Dup3(int(f.Fd()), i+1, 0); err != nil {
			return nil, err
		}
	}
	return func() {
		dpdkx.FlushC()
		for i, fd := range saved {
			_ = unix.Dup3(fd, i+1, 0) // they were open before
			unix.Close(fd)
		}
	}, nil
}

// ealError makes one line of what EAL said.
func ealError(args []string, text string, err error) error {
	var told []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "EAL: ") && !harmless(line) || strings.HasPrefix(line, "ARGPARSE: ") || strings.Contains(line, ": unrecognized option") || strings.Contains(line, ": invalid option") ||
			strings.Contains(line, "requires an argument") {
			told = append(told, strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "EAL: "), "ARGPARSE: "), "mroce-dpdk: "))
		}
	}
	told = slices.Compact(told)
	what := strings.Join(told[:min(len(told), 3)], "; ")
	if what == "" {
		what = err.Error()
	}
	switch {
	case errors.Is(err, eal.ErrExit), strings.Contains(text, "Invalid 'command line' arguments"), strings.Contains(text, "Error parsing command line arguments"):
		return fail.Usagef("EAL does not take its arguments (%s): %s", strings.Join(args[1:], " "), what)
	case strings.Contains(text, "cannot open shared object"), strings.Contains(text, "Cannot init plugins"):
		return fail.Lackf("EAL cannot load a driver: %s; `-- -d FOLDER` names the folder with DPDK's drivers", what)
	case strings.Contains(text, "hugepage"), strings.Contains(text, "Cannot init memory"), strings.Contains(text, "Out of memory"):
		return fail.Lackf("EAL has no memory: %s; `-- --no-huge -m 512` does without huge pages", what)
	case strings.Contains(text, "Cannot create lock"), strings.Contains(text, "another primary process"):
		return fail.Failf("another DPDK program has that file prefix: %s; `-- --file-prefix NAME` chooses another", what)
	}
	return fail.Failf("EAL does not start: %s", what)
}

// harmless lists what EAL says on every start.
func harmless(line string) bool {
	for _, s := range []string{"Detected CPU lcores", "Detected NUMA nodes", "Detected shared linkage", "Multi-process socket", "Selected IOVA mode", "VFIO support", "Static memory layout",
		"TSC is not safe", "Telemetry", "WARNING"} {
		if strings.Contains(line, s) {
			return true
		}
	}
	return false
}

// endEAL gives back what the environment took, files included: they would stay for whoever starts next under that name.
func endEAL(args []string) {
	dir := dpdkx.RuntimeDir()
	if !dpdkx.ParkInterrupts() {
		fmt.Fprintln(os.Stderr, "DPDK's interrupt thread does not stop: its environment is left as it is")
	} else if err := eal.Cleanup(); err != nil {
		fmt.Fprintf(os.Stderr, "the end of DPDK's environment: %v\n", err)
	}
	if strings.HasPrefix(filepath.Base(dir), "mroce-") { // one that we named
		os.RemoveAll(dir)
	}
}
