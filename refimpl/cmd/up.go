//go:build dpdk

package cmd

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/refimpl/wire"
)

const (
	defaultMTU = 4300 // holds 4,096 bytes of payload
	maxNoise   = 100 * time.Millisecond
	grace      = 5 * time.Second // between SIGTERM and SIGKILL
)

func (e *env) upCommand() *cli.Command {
	return &cli.Command{
		Name: "up", Usage: "start a daemon with a NIC on DPDK ports, or several that share them", ArgsUsage: "[-- EAL ARGUMENTS]",
		Description: example("mroce-dpdk up --addr 10.0.0.1/24 --wire dpdk:net_memif0,role=server,socket=/tmp/plane0.sock -- --no-huge -m 256", "mroce-dpdk down") + "\n\n" +
			"A wire is dpdk:PCI-ADDRESS (0000:03:00.0), dpdk:PORT (a number, of a port that EAL finds) or dpdk:VDEV,ARGUMENTS: net_memif, net_tap,\n" +
			"net_af_packet, net_af_xdp. One a plane, in order. What follows -- goes to DPDK: -l CORE binds the loop to a core, -d FOLDER loads drivers; `up -- --help` lists them all.\n\n" +
			"--shards 2 makes two NICs of the same ports, mr0 and mr1, each with its own loop, queues and addresses: `-- -l 2,3` gives them a core each,\n" +
			"and a program that opens both uses both.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "nic", Usage: "its name, HOST/mrN or mrN; default: the host's name and mr0"},
			&cli.StringSliceFlag{Name: "wire", Usage: "a plane's wire, in order: dpdk:PORT_OR_VDEV"},
			&cli.StringSliceFlag{Name: "addr", Usage: "address of the NIC with its prefix length; its GIDs, in order. Of several NICs: first all of the first one"},
			&cli.IntFlag{Name: "shards", Usage: "NICs that share the ports, with a loop each", Value: 1},
			&cli.StringFlag{Name: "transport", Usage: "how connections travel: auto (MetaRoCE, and RoCEv2 with peers that do not speak it), metaroce, rocev2", Value: "auto"},
			&cli.IntFlag{Name: "mtu", Usage: "MTU of the planes' Ethernet", Value: defaultMTU},
			&cli.DurationFlag{Name: "noise", Usage: "the wires' timing noise, floor of delay targets and loss timers (20us: cores of their own)", Value: 2 * time.Millisecond},
			&cli.StringFlag{Name: "poll", Usage: "adaptive (naps when nothing comes) or busy (a core of its own, always at work)", Value: "adaptive"},
			&cli.StringFlag{Name: "socket", Usage: "path of the control socket"},
			&cli.StringFlag{Name: "group", Usage: "let this group use the NIC too"},
			&cli.StringFlag{Name: "dma", Usage: "how programs' memory is reached: auto, or assist", Value: "auto"},
			&cli.StringFlag{Name: "capture", Usage: "write all that the planes send and receive to this pcapng file, from the first packet to the last"},
			&cli.BoolFlag{Name: "foreground", Usage: "stay, show the log, end the NIC on Ctrl-C (for systemd)"},
			jsonFlag(),
		},
		Action: e.up,
	}
}

func (e *env) downCommand() *cli.Command {
	return &cli.Command{
		Name: "down", Usage: "end the daemon that `up` started", ArgsUsage: "[NAME]", Description: example("mroce-dpdk down"),
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "all", Usage: "every one of this user"}},
		Action: e.down,
	}
}

// state is what is recorded of a daemon.
type state struct {
	Name    string          `json:"name"`
	NIC     string          `json:"nic"`
	Wires   []string        `json:"wires"`
	Socket  string          `json:"socket"`
	Log     string          `json:"log"`
	Created time.Time       `json:"created"`
	Process *rundir.Process `json:"process,omitempty"`
	dir     string
}

const stateFile = "dpdk.json"

func (s *state) save() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, stateFile), append(text, '\n'), 0o600)
}

// unique is a name for files in places that all daemons of the machine share: two users, or two directories of one, may have
// NICs of one name.
func (s *state) unique() string {
	h := sha256.Sum256([]byte(s.dir))
	return fmt.Sprintf("%s-%x", s.Name, h[:4])
}

// states are the daemons that are recorded in the directory of this user.
func states() ([]*state, error) {
	base, err := rundir.Dir()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(base, "*", stateFile))
	if err != nil {
		return nil, err
	}
	var all []*state
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it went meanwhile
		}
		s := &state{dir: filepath.Dir(f)}
		if json.Unmarshal(text, s) == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// end ends the daemon and removes what it left.
func (s *state) end() error {
	if s.Process != nil {
		if err := s.Process.End(grace); err != nil {
			return err
		}
	}
	// What EAL leaves where its process was killed; where that is depends on who ran it.
	for _, dir := range []string{"/var/run", os.Getenv("XDG_RUNTIME_DIR"), "/tmp"} {
		if dir != "" {
			os.RemoveAll(filepath.Join(dir, "dpdk", "mroce-"+s.unique()))
		}
	}
	if err := os.Remove(s.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.dir)
}

func (e *env) up(c *cli.Context) error {
	if ealHelp(c.Args().Slice()) {
		return nil
	}
	nics, err := nicsOf(c)
	if err != nil {
		return err
	}
	nic := nics[0]
	poll := c.String("poll")
	if poll != "adaptive" && poll != "busy" {
		return fail.Usagef("--poll %s: adaptive or busy", poll)
	}
	dma, err := serve.CheckDMA(c.String("dma"))
	if err != nil {
		return err
	}
	if err := serve.CheckGroup(c.String("group")); err != nil {
		return err
	}
	capture, err := serve.CheckCapture(c.String("capture"))
	if err != nil {
		return err
	}
	s, err := e.room(nic, c.String("socket"))
	if err != nil {
		return err
	}
	cfg := &config{Busy: poll == "busy", Shards: len(nics), Config: serve.Config{
		Name: s.Name, Socket: s.Socket, Group: c.String("group"), DMA: dma, Transport: nic.Transport, Version: e.version, Seed: serve.SecretSeed(), Private: true,
		Spool: filepath.Join(s.dir, "spool"), Capture: capture, NICs: nics,
	}}
	if cfg.EAL, cfg.Cores, err = ealArgs(c.Args().Slice(), s.unique(), s.Wires, len(nics), e.note); err != nil {
		return errors.Join(fail.Usagef("%w", err), s.end())
	}
	switch {
	case cfg.Busy && len(cfg.Cores) == 0:
		e.note("--poll busy without a core: `-- -l CORE` binds the loop to one")
	case cfg.Busy && len(cfg.Cores) < len(nics):
		return errors.Join(fail.Usagef("--poll busy with %d loops takes as many cores: `-- -l 2,3`", len(nics)), s.end())
	}
	if err := e.start(c, s, cfg); err != nil {
		return errors.Join(err, s.end())
	}
	if c.Bool("json") {
		return e.printJSON(s)
	}
	for _, n := range nics {
		fmt.Fprintf(e.out, "%s: %s, %d planes (%s), control socket %s\n", n.Name, n.Addrs[0], len(n.Planes), strings.Join(s.Wires, " "), s.Socket)
	}
	if !c.Bool("foreground") {
		fmt.Fprintf(e.out, "try: nicemu run -- ibv_devinfo\n")
		return nil
	}
	return errors.Join(serve.Follow(c.Context, s.Log, s.Process, e.err), s.end())
}

// room makes the directory of a daemon, clearing away one that is dead.
func (e *env) room(nic serve.NIC, socket string) (*state, error) {
	base, err := rundir.Dir()
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(nic.Name, "/", "-")
	if socket == "" {
		socket = filepath.Join(base, name+".sock")
	}
	s := &state{Name: name, NIC: nic.Name, Socket: socket, Created: time.Now().Round(time.Second), dir: filepath.Join(base, name)}
	s.Log = filepath.Join(s.dir, "daemon.log")
	for _, w := range nic.Planes {
		s.Wires = append(s.Wires, w.URL)
	}
	all, err := states()
	if err != nil {
		return nil, err
	}
	for _, old := range all {
		if old.Name != name {
			continue
		}
		if old.Process != nil && old.Process.Alive() {
			return nil, fail.Failf("%s is up already; `mroce-dpdk down %s` ends it", name, name)
		}
		e.note("clearing away what an earlier %s left", name)
		if err := old.end(); err != nil {
			return nil, err
		}
	}
	if err := serve.CheckSocket(socket); err != nil {
		return nil, err
	}
	return s, os.MkdirAll(filepath.Join(s.dir, "spool"), 0o700)
}

func (e *env) start(c *cli.Context, s *state, cfg *config) error {
	file := filepath.Join(s.dir, "daemon.json")
	if err := cfg.write(file); err != nil {
		return err
	}
	l := serve.Launch{Name: "mroce-dpdk", Config: file, Socket: s.Socket, Log: s.Log, Recorded: func(p rundir.Process) error {
		s.Process = &p
		return s.save()
	}}
	return l.Start(c.Context)
}

func (e *env) down(c *cli.Context) error {
	all, err := states()
	if err != nil {
		return err
	}
	var names []string
	var chosen []*state
	want := strings.ReplaceAll(c.Args().First(), "/", "-")
	for _, s := range all {
		names = append(names, s.Name)
		if c.Bool("all") || s.Name == want || want == "" && len(all) == 1 {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(all) == 0:
		return fail.Failf("no NIC of mroce-dpdk is up")
	case len(chosen) == 0 && want == "":
		return fail.Usagef("several are up; which one? %s", strings.Join(names, ", "))
	case len(chosen) == 0:
		return fail.Failf("no NIC %q is up; up: %s", want, strings.Join(names, ", "))
	}
	var errs []error
	for _, s := range chosen {
		if err := s.end(); err != nil {
			errs = append(errs, err)
			continue
		}
		e.note("%s is down", s.Name)
	}
	return errors.Join(errs...)
}

// nicsOf reads the flags of `up` into a NIC, or as many as there are shards.
func nicsOf(c *cli.Context) ([]serve.NIC, error) {
	addrs, shards := c.StringSlice("addr"), c.Int("shards")
	switch {
	case shards < 1 || shards > wire.MaxShards:
		return nil, fail.Usagef("--shards %d: 1 to %d", shards, wire.MaxShards)
	case len(addrs)%shards != 0:
		return nil, fail.Usagef("--shards %d with %d addresses: each NIC needs its own, and all as many", shards, len(addrs))
	}
	each := len(addrs) / shards
	var nics []serve.NIC
	name := c.String("nic")
	for i := range shards {
		n, err := nicOf(c, name, addrs[i*each:(i+1)*each])
		if err != nil {
			return nil, err
		}
		nics = append(nics, n)
		if i+1 < shards {
			if name, err = following(n.Name); err != nil {
				return nil, err
			}
		}
	}
	return nics, nil
}

// following is the name of the NIC after one: a/mr1 after a/mr0.
func following(name string) (string, error) {
	stem := strings.TrimRight(name, "0123456789")
	n, err := strconv.Atoi(name[len(stem):])
	if err != nil {
		return "", fail.Usagef("--nic %s with --shards: a name that ends in a number, for the next ones to go on from", name)
	}
	return stem + strconv.Itoa(n+1), nil
}

func nicOf(c *cli.Context, name string, addrs []string) (serve.NIC, error) {
	n, err := serve.NewNIC(name, addrs, c.String("transport"))
	if err != nil {
		return n, err
	}
	host, _, _ := strings.Cut(n.Name, "/")
	n.GUID = serve.GUID("", host, n.Dev)
	noise := c.Duration("noise")
	if noise < 0 || noise > maxNoise {
		return n, fail.Usagef("--noise %v: a time from 0s to %v", noise, maxNoise)
	}
	if len(c.StringSlice("wire")) == 0 {
		return n, fail.Usagef("which port? --wire dpdk:0000:03:00.0, or without hardware --wire dpdk:net_memif0,role=server,socket=/tmp/plane0.sock")
	}
	for _, w := range c.StringSlice("wire") {
		if err := wire.Check(w); err != nil {
			return n, fail.Usagef("--wire: %w", err)
		}
		n.Planes = append(n.Planes, serve.Wire{URL: w, MTU: c.Int("mtu"), Noise: &noise})
	}
	return n, nil
}
