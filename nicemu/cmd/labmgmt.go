package cmd

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
)

func (e *env) impairCommand() *cli.Command {
	return &cli.Command{
		Name: "impair", Usage: "make planes worse, or better again, while programs run", ArgsUsage: "[WORD…]",
		Description: example("nicemu lab impair --planes 1 loss=5% delay=20us", "nicemu lab impair clear") +
			"\n\nWithout words it shows what is set. Words change what they name and leave the rest as it is:\n" + indent(impair.Help()),
		Flags: []cli.Flag{
			labFlag(), jsonFlag(),
			&cli.StringFlag{Name: "planes", Aliases: []string{"plane"}, Usage: "only these: 1 or 0,2 or 0-3"},
			&cli.StringFlag{Name: "hosts", Aliases: []string{"host"}, Usage: "only these hosts' NICs: a or a,b"},
		},
		Action: e.impair,
	}
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}

func (e *env) labPlaneCommand() *cli.Command {
	return &cli.Command{
		Name: "plane", Usage: "cut a plane, or mend it", ArgsUsage: "PLANE down|up",
		Description: example("nicemu lab plane 2 down", "nicemu lab plane 2 up"),
		Flags: []cli.Flag{
			labFlag(),
			&cli.StringFlag{Name: "hosts", Aliases: []string{"host"}, Usage: "only these hosts' links to it"},
			&cli.BoolFlag{Name: "silent", Usage: "packets vanish, but every link stays up, as when a switch in the middle fails"},
		},
		Action: e.labPlane,
	}
}

func captureFlags(more ...cli.Flag) []cli.Flag {
	return append(more,
		&cli.StringFlag{Name: "planes", Aliases: []string{"plane"}, Usage: "only these: 1 or 0,2 or 0-3"},
		&cli.StringFlag{Name: "write", Aliases: []string{"w"}, Usage: "the file; - is stdout"},
		&cli.DurationFlag{Name: "for", Usage: "stop after this time; else on Ctrl-C"},
		&cli.IntFlag{Name: "snaplen", Usage: "keep so many bytes of each packet; 0 = all"})
}

// labCaptureCommand is `lab capture`.
func (e *env) labCaptureCommand() *cli.Command {
	return &cli.Command{
		Name: "capture", Usage: "write what a host's NIC sends and receives to a pcapng file", ArgsUsage: "HOST",
		Description: example("nicemu lab capture a --plane 0 -w a.pcapng --for 10s", "nicemu lab capture a -w - | wireshark -k -i -"),
		Flags:       captureFlags(labFlag()),
		Action:      e.captureHost, BashComplete: completeWords(hostNames),
	}
}

// captureCommand is `capture`: of any daemon's NIC, mroce-dpdk's too.
func (e *env) captureCommand() *cli.Command {
	return &cli.Command{
		Name: "capture", Usage: "write what a NIC sends and receives to a pcapng file", Category: "Management",
		Description: example("nicemu capture -w mr0.pcapng --for 10s", "nicemu capture --nic a/mr0 --plane 0 -w - | wireshark -k -i -"),
		Flags:       captureFlags(labFlag(), &cli.StringFlag{Name: "nic", Usage: "which NIC: HOST/mrN"}),
		Action:      e.captureNIC,
	}
}

// numberList reads 1 or 0,2 or 0-3.
func numberList(text string, limit int) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var list []int
	for _, part := range strings.Split(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(hi)
		}
		if err != nil || a > b {
			return nil, fail.Usagef("%q is no list of planes such as 1 or 0,2 or 0-3", text)
		}
		if a < 0 || b >= limit {
			return nil, fail.Usagef("plane %d: the lab has planes 0 to %d", b, limit-1)
		}
		for i := a; i <= b; i++ {
			list = append(list, i)
		}
	}
	return list, nil
}

func hostList(s *lab.State, text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	list := strings.Split(text, ",")
	for _, h := range list {
		if _, err := s.FindHost(h); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (e *env) impair(c *cli.Context) error {
	s, err := lab.Find(lab.KindLab, c.String("lab"))
	if err != nil {
		return err
	}
	planes, err := numberList(c.String("planes"), s.Planes)
	if err != nil {
		return err
	}
	hosts, err := hostList(s, c.String("hosts"))
	if err != nil {
		return err
	}
	words := c.Args().Slice()
	if _, err := impair.Parse(words); err != nil {
		return fail.Usagef("%s", strings.TrimPrefix(err.Error(), "impair: "))
	}
	states, err := impairLab(s, serve.ImpairArgs{Planes: planes, Hosts: hosts, Words: words})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printEach(states)
	}
	if len(words) > 0 {
		return nil
	}
	var rows [][]string
	for _, st := range states {
		rows = append(rows, []string{st.NIC, strconv.Itoa(st.Plane), st.Words})
	}
	return columns(e.out, []string{"NIC", "PLANE", "IMPAIRMENT"}, rows)
}

// impairLab sends the words to all daemons of the lab that have one of the hosts.
func impairLab(s *lab.State, a serve.ImpairArgs) ([]serve.ImpairState, error) {
	ts, err := targetsOf(s, "")
	if err != nil {
		return nil, err
	}
	all := []serve.ImpairState{}
	for _, t := range ts {
		concerned := len(a.Hosts) == 0 || slices.ContainsFunc(a.Hosts, func(h string) bool { return s.Daemons[s.Host(h).Daemon].Socket == t.socket })
		if !concerned {
			continue
		}
		var states []serve.ImpairState
		if err := t.call("impair", "", a, &states); err != nil {
			return nil, err
		}
		all = append(all, states...)
	}
	return all, nil
}

func (e *env) labPlane(c *cli.Context) error {
	up, plane, err := planeArgs(c)
	if err != nil {
		return err
	}
	s, err := lab.Find(lab.KindLab, c.String("lab"))
	if err != nil {
		return err
	}
	if plane >= s.Planes {
		return fail.Usagef("plane %d: the lab has planes 0 to %d", plane, s.Planes-1)
	}
	hosts, err := hostList(s, c.String("hosts"))
	if err != nil {
		return err
	}
	words := []string{"down"}
	switch {
	case c.Bool("silent") && up:
		words = []string{"loss=0%", "rx.loss=0%"}
	case c.Bool("silent"):
		words = []string{"loss=100%", "rx.loss=100%"}
	case up:
		words = []string{"up"}
	}
	_, err = impairLab(s, serve.ImpairArgs{Planes: []int{plane}, Hosts: hosts, Words: words})
	return err
}

func (e *env) captureHost(c *cli.Context) error {
	if c.Args().Len() != 1 {
		return fail.Usagef("which host? nicemu lab capture a -w a.pcapng")
	}
	if c.String("write") == "" {
		return errWhereTo
	}
	s, h, err := labWithHost(c.String("lab"), c.Args().First())
	if err != nil {
		return err
	}
	planes, err := numberList(c.String("planes"), s.Planes)
	if err != nil {
		return err
	}
	client, err := dial(s.Daemons[h.Daemon].Socket)
	if err != nil {
		return err
	}
	return e.capture(c, &target{client: client}, serve.CaptureArgs{Host: h.Name, Planes: planes, SnapLen: c.Int("snaplen")})
}

var errWhereTo = fail.Usagef("where to? -w FILE, or -w - for stdout")

func (e *env) captureNIC(c *cli.Context) error {
	if c.Args().Len() > 0 {
		return fail.Usagef("capture takes flags only; what is %q? --nic names a NIC", c.Args().First())
	}
	if c.String("write") == "" {
		return errWhereTo
	}
	t, name, err := e.oneNIC(c, "")
	if err != nil {
		return err
	}
	limit := 0
	for _, n := range t.nics {
		if n.Name == name {
			limit = len(n.Planes)
		}
	}
	planes, err := numberList(c.String("planes"), limit)
	if err != nil {
		return err
	}
	return e.capture(c, t, serve.CaptureArgs{NIC: name, Planes: planes, SnapLen: c.Int("snaplen")})
}

// capture has a daemon capture and copies what it writes.
func (e *env) capture(c *cli.Context, t *target, a serve.CaptureArgs) (err error) {
	out := e.out
	if name := c.String("write"); name != "-" {
		f, errOpen := os.Create(name)
		if errOpen != nil {
			return errOpen
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	var started serve.CaptureStarted
	if err := t.call("capture", "", a, &started); err != nil {
		return err
	}
	spool, err := os.Open(started.File)
	os.Remove(started.File) // the daemon's descriptor and ours keep it until both are closed
	if err != nil {
		_ = t.call("capture-poll", "", serve.CapturePoll{ID: started.ID, Stop: true}, nil)
		return err
	}
	defer spool.Close()
	return e.followCapture(c, t, started.ID, spool, out)
}

// followCapture copies the growing file until the time is over, the reader leaves, or Ctrl-C.
func (e *env) followCapture(c *cli.Context, t *target, id string, spool io.Reader, out io.Writer) error {
	var end <-chan time.Time
	if d := c.Duration("for"); d > 0 {
		end = time.After(d)
	}
	var st serve.CaptureState
	var failed error
	stop := false
	for !st.Done {
		if _, err := io.Copy(out, spool); err != nil && failed == nil {
			failed, stop = err, true
		}
		st = serve.CaptureState{}
		if err := t.call("capture-poll", "", serve.CapturePoll{ID: id, Stop: stop}, &st); err != nil {
			return errors.Join(failed, err)
		}
		if stop {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		select {
		case <-end:
			stop = true
		case <-c.Context.Done():
			stop = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	if failed == nil {
		_, failed = io.Copy(out, spool)
	}
	e.note("%d packets", st.Packets-st.Lost)
	switch {
	case failed != nil:
		return failed
	case st.Error != "":
		return fail.Failf("the capture is not whole: %s", st.Error)
	case st.Lost > 0:
		return fail.New(fail.Partial, "%d of %d packets are missing: the disk was too slow", st.Lost, st.Packets)
	}
	return ended(c.Context)
}
