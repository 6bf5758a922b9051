package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/view"
)

func (e *env) labCommand() *cli.Command {
	return &cli.Command{
		Name: "lab", Usage: "hosts with emulated NICs, joined by emulated networks",
		Description: example("nicemu lab up two-hosts", "nicemu lab exec a -- ibv_devinfo", "nicemu lab down"),
		Subcommands: []*cli.Command{
			{
				Name: "up", Usage: "bring a lab up", ArgsUsage: "FILE|BUILT-IN",
				Description: example("nicemu lab up two-hosts") + "\n\nBuilt-in labs:\n" + builtinList(),
				Flags:       append(labUpFlags(), jsonFlag()),
				Action:      e.labUp, BashComplete: completeWords(labfile.BuiltinNames),
			},
			{
				Name: "down", Usage: "end a lab: its programs, daemons and namespaces", ArgsUsage: "[LAB]",
				Description: example("nicemu lab down"),
				Flags:       []cli.Flag{labFlag(), &cli.BoolFlag{Name: "all", Usage: "every lab of this user, also what a killed one left"}},
				Action:      e.labDown, BashComplete: completeWords(labNames),
			},
			{
				Name: "ls", Usage: "list the labs that are up", Description: example("nicemu lab ls"),
				Flags: []cli.Flag{jsonFlag()}, Action: e.labLs,
			},
			{
				Name: "exec", Usage: "run a program on a host", ArgsUsage: "HOST [--] PROGRAM [ARGUMENT…]",
				Description: example("nicemu lab exec a -- ib_write_bw --report_gbits -D 3 & sleep 1", "nicemu lab exec b -- ib_write_bw --report_gbits -D 3 10.0.0.1"),
				Flags:       []cli.Flag{labFlag()}, Action: e.labExec, BashComplete: completeWords(hostNames),
			},
			{
				Name: "run", Usage: "bring a lab up, run a command of this machine, take the lab down, whatever happens", ArgsUsage: "FILE|BUILT-IN -- COMMAND…",
				Description: example("nicemu lab run two-hosts -- nicemu lab exec a -- ibv_devinfo"),
				Flags:       labUpFlags(), Action: e.labRun, BashComplete: completeWords(labfile.BuiltinNames),
			},
			{
				Name: "init", Usage: "write a lab file to edit", ArgsUsage: "[FILE]",
				Description: example("nicemu lab init my-lab.yaml", "nicemu lab init --from slow-planes slow.yaml"),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "from", Usage: "begin with this built-in lab"},
					&cli.BoolFlag{Name: "force", Usage: "overwrite the file"},
				},
				Action: e.labInit,
			},
			{
				Name: "graph", Usage: "a picture of a lab", ArgsUsage: "[LAB|FILE]", Description: example("nicemu lab graph"),
				Flags:  []cli.Flag{labFlag(), &cli.BoolFlag{Name: "dot", Usage: "for Graphviz"}},
				Action: e.labGraph, BashComplete: completeWords(labNames),
			},
			e.impairCommand(), e.labPlaneCommand(), e.labCaptureCommand(),
		},
	}
}

func labFlag() cli.Flag {
	return &cli.StringFlag{Name: "lab", Usage: "which lab, when several are up", EnvVars: []string{"MR_LAB"}}
}

func labUpFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "wire", Usage: "tap, udp or mem instead of what the file says"},
		&cli.BoolFlag{Name: "daemon-per-host", Usage: "one daemon a host, so that one can be killed; TCP then goes beside the planes"},
		&cli.StringFlag{Name: "group", Usage: "let this group use the lab's NICs too"},
		&cli.StringFlag{Name: "dma", Usage: "how programs' memory is reached: auto, or assist (each program copies by itself: slower, and a wait for its memory is bounded)", Value: "auto"},
		&cli.StringFlag{Name: "oob", Usage: "how TCP between hosts travels: planes (over the NIC, as with a real one) or veth (beside it); default: planes where possible, veth with --daemon-per-host"},
		&cli.StringFlag{Name: "isolation", Usage: "how hosts are kept apart: root, user or none; default: the best this machine allows"},
		&cli.BoolFlag{Name: "no-view", Usage: "show programs the machine's own /sys and /dev"},
	}
}

func builtinList() string {
	var b strings.Builder
	for _, l := range labfile.Builtins {
		fmt.Fprintf(&b, "  %-12s %s\n", l.Name, l.About)
	}
	return b.String()
}

// completeWords completes an argument from a list; flags are completed by the default.
func completeWords(words func() []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		if last := os.Args[max(0, len(os.Args)-2)]; strings.HasPrefix(last, "-") {
			cli.DefaultCompleteWithFlags(c.Command)(c)
			return
		}
		if c.NArg() == 0 {
			for _, w := range words() {
				fmt.Fprintln(c.App.Writer, w)
			}
		}
	}
}

func labNames() []string {
	all, _ := lab.List(lab.KindLab)
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

func hostNames() []string {
	all, _ := lab.List(lab.KindLab)
	var names []string
	for _, s := range all {
		names = append(names, s.HostNames()...)
	}
	return names
}

// readLab reads a file, or the built-in lab of that name.
func readLab(name string) (*labfile.Lab, error) {
	text, err := os.ReadFile(name)
	if err == nil {
		return labfile.Parse(name, text)
	}
	if b, ok := labfile.FindBuiltin(name); ok {
		return labfile.Parse(name, []byte(b.YAML))
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fail.Usagef("cannot read %s: %w", name, err)
	}
	if near := labfile.Nearest(name, labfile.BuiltinNames()); near != "" && !strings.ContainsAny(name, "./") {
		return nil, fail.Usagef("no file and no built-in lab %q; did you mean %q?", name, near)
	}
	return nil, fail.Usagef("no file %s; built-in labs: %s", name, strings.Join(labfile.BuiltinNames(), ", "))
}

func (e *env) bringUp(c *cli.Context) (*lab.State, error) {
	if c.Args().Len() == 0 {
		return nil, fail.Usagef("which lab? a file, or one of %s", strings.Join(labfile.BuiltinNames(), ", "))
	}
	name := c.Args().First()
	l, err := readLab(name)
	if err != nil {
		return nil, err
	}
	if w := c.String("wire"); w != "" {
		if wires := []string{"auto", "tap", "udp", "mem"}; !slices.Contains(wires, w) {
			return nil, fail.Usagef("--wire %s: one of %s", w, strings.Join(wires, ", "))
		}
		l.Wire = w
	}
	if abs, err := filepath.Abs(name); err == nil {
		if _, err := os.Stat(abs); err == nil {
			name = abs
		}
	}
	how := lab.Isolation(c.String("isolation"))
	if kinds := []lab.Isolation{"", lab.IsolateRoot, lab.IsolateUser, lab.IsolateNone}; !slices.Contains(kinds, how) {
		return nil, fail.Usagef("--isolation %s: one of root, user, none", how)
	}
	oob := c.String("oob")
	if !slices.Contains([]string{"", "planes", "veth"}, oob) {
		return nil, fail.Usagef("--oob %s: planes or veth", oob)
	}
	if err := serve.CheckGroup(c.String("group")); err != nil {
		return nil, err
	}
	dma, err := serve.CheckDMA(c.String("dma"))
	if err != nil {
		return nil, err
	}
	return lab.Up(c.Context, l, lab.Options{
		Isolation: how, OOB: oob, DMA: dma,
		File: name, Version: e.version, DaemonPerHost: c.Bool("daemon-per-host"), Group: c.String("group"), NoView: c.Bool("no-view"),
		Note: func(s string) { e.note("%s", s) },
	})
}

func (e *env) labUp(c *cli.Context) error {
	if extra := c.Args().Tail(); len(extra) > 0 {
		return fail.Usagef("one lab at a time; what is %q?", extra[0])
	}
	s, err := e.bringUp(c)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printJSON(labJSON(s))
	}
	return e.describe(s)
}

// describe prints what `up` made.
func (e *env) describe(s *lab.State) error {
	kept := map[lab.Isolation]string{
		lab.IsolateRoot: "hosts are network, UTS and mount namespaces", lab.IsolateUser: "hosts are namespaces inside a user namespace",
		lab.IsolateNone: "all hosts are this machine, with addresses of its loopback interface",
	}[s.Isolation]
	tcp := map[string]string{
		"planes": "TCP crosses the planes as well", "veth": "TCP goes beside the planes, over a bridge of its own", "machine": "TCP goes over the loopback interface",
	}[s.OOB]
	fmt.Fprintf(e.out, "%s: %s, %s over %s; %s; %s\n", s.Name, count(len(s.Hosts), "host"), count(s.Planes, "plane"), s.Wire, kept, tcp)
	var rows [][]string
	for i, h := range s.Hosts {
		if i == 16 && len(s.Hosts) > 20 {
			rows = append(rows, []string{"…", "", fmt.Sprintf("%d more", len(s.Hosts)-i)})
			break
		}
		for _, n := range h.NICs {
			var addrs []string
			for _, a := range n.Addrs {
				addrs = append(addrs, a.String())
			}
			rows = append(rows, []string{h.Name, n.Name, strings.Join(addrs, " ")})
		}
	}
	if err := columns(e.out, []string{"HOST", "NIC", "ADDRESS"}, rows); err != nil {
		return err
	}
	if len(s.Hosts) > 0 {
		fmt.Fprintf(e.out, "try: nicemu lab exec %s -- ibv_devinfo\n", s.Hosts[0].Name)
	}
	return nil
}

// count prints "1 plane", "4 planes".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

type labInfo struct {
	Name      string     `json:"name"`
	File      string     `json:"file"`
	State     string     `json:"state"`
	Wire      string     `json:"wire"`
	Isolation string     `json:"isolation"`
	OOB       string     `json:"oob"`
	Planes    int        `json:"planes"`
	Sockets   []string   `json:"sockets"`
	PIDs      []int      `json:"daemon_pids"`
	Hosts     []hostInfo `json:"hosts"`
}

type hostInfo struct {
	Name      string   `json:"name"`
	NICs      []string `json:"nics"`
	Addrs     []string `json:"addresses"`
	DaemonPID int      `json:"daemon_pid"`
	Socket    string   `json:"socket"`
}

func labJSON(s *lab.State) labInfo {
	info := labInfo{
		Name: s.Name, File: s.File, State: s.Health(), Wire: s.Wire, Isolation: string(s.Isolation), OOB: s.OOB, Planes: s.Planes,
	}
	for _, d := range s.Daemons {
		info.Sockets = append(info.Sockets, d.Socket)
		if d.Process != nil {
			info.PIDs = append(info.PIDs, d.Process.PID)
		}
	}
	for _, h := range s.Hosts {
		hi := hostInfo{Name: h.Name, Socket: s.Daemons[h.Daemon].Socket}
		if p := s.Daemons[h.Daemon].Process; p != nil {
			hi.DaemonPID = p.PID
		}
		for _, n := range h.NICs {
			hi.NICs = append(hi.NICs, h.Name+"/"+n.Name)
			for _, a := range n.Addrs {
				hi.Addrs = append(hi.Addrs, a.Addr().String())
			}
		}
		info.Hosts = append(info.Hosts, hi)
	}
	return info
}

func (e *env) labDown(c *cli.Context) error {
	if c.Bool("all") {
		all, err := lab.List("")
		if err != nil {
			return err
		}
		var errs []error
		for _, s := range all {
			if err := s.Down(); err != nil {
				errs = append(errs, err)
			} else {
				e.note("%s is down", s.Name)
			}
		}
		if len(all) == 0 {
			e.note("nothing is up")
		}
		return errors.Join(errs...)
	}
	if c.Args().Len() > 1 {
		return fail.Usagef("one lab at a time, or --all; what is %q?", c.Args().Get(1))
	}
	s, err := lab.Find(lab.KindLab, named1(c))
	if err != nil {
		return err
	}
	if err := s.Down(); err != nil {
		return err
	}
	e.note("%s is down", s.Name)
	return nil
}

// named1 is the lab that the only argument or --lab names.
func named1(c *cli.Context) string {
	if name := c.Args().First(); name != "" {
		return name
	}
	return c.String("lab")
}

func (e *env) labLs(c *cli.Context) error {
	all, err := lab.List(lab.KindLab)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		for _, s := range all {
			if err := e.printJSON(labJSON(s)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		e.note("no lab is up; `nicemu lab up two-hosts` makes one")
		return nil
	}
	var rows [][]string
	for _, s := range all {
		rows = append(rows, []string{
			s.Name, s.Health(), strconv.Itoa(len(s.Hosts)), strconv.Itoa(s.Planes), s.Wire, strconv.Itoa(len(s.Running())),
		})
	}
	return columns(e.out, []string{"LAB", "STATE", "HOSTS", "PLANES", "WIRE", "PROGRAMS"}, rows)
}

// labWithHost finds the lab a host is meant to be in: the named one, the only one, or the only one with that host.
func labWithHost(name, host string) (*lab.State, *lab.Host, error) {
	s, err := lab.Find(lab.KindLab, name)
	if err != nil && name == "" {
		all, _ := lab.List(lab.KindLab)
		all = slices.DeleteFunc(all, func(s *lab.State) bool { return s.Host(host) == nil })
		if len(all) == 1 {
			s, err = all[0], nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	h, err := s.FindHost(host)
	return s, h, err
}

func (e *env) labExec(c *cli.Context) error {
	args := c.Args().Slice()
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1], args[2:]...)
	}
	if len(args) < 2 {
		return fail.Usagef("which program? nicemu lab exec HOST -- PROGRAM")
	}
	s, h, err := labWithHost(c.String("lab"), args[0])
	if err != nil {
		return err
	}
	dir, err := libDir()
	if err != nil {
		return err
	}
	argv := shellLine(args[1:])
	if spec := s.Tree(h, e.version); spec != nil {
		err := e.execAnswered(s, h, *spec, dir, argv)
		var no *noView
		if !errors.As(err, &no) {
			return err
		}
		if c.Bool("verbose") {
			e.note("no view of /sys and /dev: %v", no.cause)
		}
	}
	return s.Exec(h, dir, argv)
}

// execAnswered runs a program in a host without namespaces: this process stays, and its calls about the view are answered.
func (e *env) execAnswered(s *lab.State, h *lab.Host, spec view.Spec, dir string, argv []string) error {
	path, environ, err := s.Prepare(h, dir, argv)
	if err != nil {
		return err
	}
	code, err := e.runAnswered(viewMode{answers: true}, spec, s.Daemons[h.Daemon].Socket, viewed{path: path, argv: argv, environ: environ})
	if err == nil && code != 0 {
		err = exitCode(code)
	}
	return err
}

// shellLine lets `lab exec` be the agent of an MPI launcher: like ssh, those hand over one word that is a line for a
// shell.
func shellLine(argv []string) []string {
	if len(argv) != 1 || !strings.ContainsAny(argv[0], " \t\n;&|<>$`\"'") {
		return argv
	}
	if _, err := lab.LookPath(argv[0]); err == nil {
		return argv
	}
	return []string{"sh", "-c", argv[0]}
}

// labRun is up, run, down. The lab is taken down whatever happens to the command.
func (e *env) labRun(c *cli.Context) (err error) {
	args := c.Args().Slice()
	at := slices.Index(args, "--")
	switch {
	case len(args) == 0:
		return fail.Usagef("which lab, and which command? for example: nicemu lab run two-hosts -- nicemu lab exec a -- ibv_devinfo")
	case at < 0 && len(args) > 1, at > 1:
		return fail.Usagef("the command goes behind --: nicemu lab run %s -- %s", args[0], strings.Join(slices.DeleteFunc(args[1:], func(s string) bool { return s == "--" }), " "))
	case at == 0 || len(args) < 3:
		return fail.Usagef("which command? nicemu lab run %s -- COMMAND", strings.Trim(args[0], "-"))
	}
	s, err := e.bringUp(c)
	if err != nil {
		return err
	}
	defer func() {
		if e := s.Down(); err == nil && e != nil {
			err = e
		}
	}()
	path, err := lab.LookPath(args[2])
	if err != nil {
		return err
	}
	dir, err := libDir()
	if err != nil {
		return err
	}
	set := lab.Env(dir, s.Daemons[0].Socket, nil)
	return e.supervise(path, args[2:], append(lab.WithEnv(set), "MR_LAB="+s.Name))
}

func (e *env) labInit(c *cli.Context) error {
	text := labfile.Template
	if from := c.String("from"); from != "" {
		b, ok := labfile.FindBuiltin(from)
		if !ok {
			return fail.Usagef("no built-in lab %q; there are %s", from, strings.Join(labfile.BuiltinNames(), ", "))
		}
		text = b.YAML
	}
	file := c.Args().First()
	if file == "" || file == "-" {
		fmt.Fprint(e.out, text)
		return nil
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_EXCL
	if c.Bool("force") {
		flags = os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fail.Failf("%s is there already; --force overwrites it", file)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		e.note("wrote %s; bring it up with: nicemu lab up %s", file, file)
	}
	return err
}
