package cmd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
)

func (e *env) demoCommand() *cli.Command {
	return &cli.Command{
		Name: "demo", Usage: "programs that nobody here wrote, between two hosts, over four planes that lose 1 %", Description: example("nicemu demo"),
		Flags:  []cli.Flag{jsonFlag(), &cli.StringFlag{Name: "wire", Usage: "auto, tap, udp or mem", Value: "auto"}},
		Action: e.demo,
	}
}

const demoLab = `name: demo
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
planes: 4
impair:
  - {loss: 1%}
`

// demoStep is one line of the table.
type demoStep struct {
	title  string
	args   []string // both ends; the client gets the server's address behind
	server bool     // needs a server on the other host
	limit  time.Duration
	read   func(out string) (value float64, ok bool)
	unit   string
	during func(ctx context.Context, d *demo) (note string, err error) // while it runs
}

// DemoResult is one line of the table as JSON.
type demoResult struct {
	Program string  `json:"program"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	OK      bool    `json:"ok"`
	Note    string  `json:"note,omitempty"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// demoLimit bounds the whole, whatever its programs do.
const demoLimit = 110 * time.Second

const demoPlane = 2 // the one that is pulled out

var demoSteps = []demoStep{
	{title: "ibv_devinfo", args: []string{"ibv_devinfo"}, limit: 10 * time.Second, read: countDevices, unit: "NIC"},
	{title: "ibv_rc_pingpong -g 0 -c", args: []string{"ibv_rc_pingpong", "-g", "0", "-c"}, server: true, limit: 20 * time.Second, read: pingpongMicros, unit: "µs/iter"},
	{title: "ib_write_bw", args: []string{"ib_write_bw", "--report_gbits"}, server: true, limit: 20 * time.Second, read: column(4), unit: "Gbit/s"},
	{title: "ib_send_bw", args: []string{"ib_send_bw", "--report_gbits"}, server: true, limit: 20 * time.Second, read: column(4), unit: "Gbit/s"},
	{title: "ib_read_bw", args: []string{"ib_read_bw", "--report_gbits"}, server: true, limit: 20 * time.Second, read: column(4), unit: "Gbit/s"},
	{title: "ib_atomic_bw", args: []string{"ib_atomic_bw", "--report_gbits"}, server: true, limit: 20 * time.Second, read: column(5), unit: "M/s"},
	{title: "ib_write_lat", args: []string{"ib_write_lat"}, server: true, limit: 20 * time.Second, read: column(5), unit: "µs"},
	{
		title: fmt.Sprintf("ib_write_bw -D 6, plane %d pulled out", demoPlane), args: []string{"ib_write_bw", "--report_gbits", "-D", "6"}, server: true,
		limit: 30 * time.Second, read: column(4), unit: "Gbit/s", during: pullPlane,
	},
}

// demo is a running one.
type demo struct {
	e   *env
	lab *lab.State
	ts  []*target
}

func (e *env) demo(c *cli.Context) (err error) {
	if err := demoNeeds(); err != nil {
		return err
	}
	if _, err := libDir(); err != nil {
		return err
	}
	if old, err := lab.Find(lab.KindLab, "demo"); err == nil && old.Name == "demo" {
		if err := old.Down(); err != nil {
			return err
		}
	}
	l, err := labfile.Parse("demo", []byte(demoLab))
	if err != nil {
		return err
	}
	l.Wire = c.String("wire")
	s, err := lab.Up(c.Context, l, lab.Options{Version: e.version, Note: func(s string) { e.note("%s", s) }})
	if err != nil {
		return err
	}
	defer func() {
		if errDown := s.Down(); err == nil {
			err = errDown
		}
	}()
	if !c.Bool("json") {
		fmt.Fprintf(e.out, "two hosts, %d planes over %s, each losing 1 %% of all packets\n\n", s.Planes, s.Wire)
	}
	d := &demo{e: e, lab: s}
	if d.ts, err = targetsOf(s, ""); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, demoLimit)
	defer cancel()
	return d.run(ctx, c.Bool("json"))
}

// demoNeeds says what is missing and how to get it.
func demoNeeds() error {
	var missing, pkgs []string
	for _, s := range demoSteps {
		if _, err := exec.LookPath(s.args[0]); err != nil {
			missing = append(missing, s.args[0])
			if p := lab.PackageOf(s.args[0]); !contains(pkgs, p) {
				pkgs = append(pkgs, p)
			}
		}
	}
	if len(missing) > 0 {
		return fail.Lackf("missing: %s; install: sudo apt-get install %s", strings.Join(missing, ", "), strings.Join(pkgs, " "))
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func (d *demo) run(ctx context.Context, asJSON bool) error {
	const row = "%-38s %9s  %-8s %-3s  %s\n" // as it goes, not at the end: people watch
	if !asJSON {
		fmt.Fprintf(d.e.out, row, "PROGRAM", "RESULT", "UNIT", "OK", "")
	}
	bad := 0
	var details []string
	for _, st := range demoSteps {
		if !asJSON && isTerminalWriter(d.e.err) {
			fmt.Fprintf(d.e.err, "%s …\r", st.title) // the result overwrites it
		}
		r := d.step(ctx, st)
		if errors.Is(ctx.Err(), context.Canceled) {
			return fail.New(fail.Stopped, "stopped during %s; the results so far are partial", st.title)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s was cut short: %w", st.title, ctx.Err())
		}
		if !r.OK {
			bad++
			details = append(details, r.Program+": "+r.Error)
		}
		if asJSON {
			if err := d.e.printJSON(r); err != nil {
				return err
			}
			continue
		}
		ok := map[bool]string{true: "yes", false: "NO"}[r.OK]
		fmt.Fprintf(d.e.out, row, r.Program, number(r.Value), r.Unit, ok, r.Note)
	}
	for _, t := range details {
		d.e.note("\n%s", t)
	}
	if bad > 0 {
		return fail.Failf("%d of %d programs failed", bad, len(demoSteps))
	}
	return nil
}

// number prints three figures that count.
func number(v float64) string {
	switch {
	case v >= 100 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// clockNoise is how perftest says that it could not calibrate its clock, on a machine that was busy just then. It
// moved the data and has nothing to report.
const clockNoise = "Correlation coefficient"

func (d *demo) step(ctx context.Context, st demoStep) demoResult {
	begin := time.Now()
	r := demoResult{Program: st.title, Unit: st.unit}
	ctx, cancel := context.WithTimeout(ctx, st.limit)
	defer cancel()
	out, note, err := d.pair(ctx, st)
	for try := 0; try < 3 && err != nil && strings.Contains(err.Error(), clockNoise); try++ {
		out, note, err = d.pair(ctx, st)
	}
	r.Seconds, r.Note = time.Since(begin).Seconds(), note
	if err == nil {
		if r.Value, r.OK = st.read(out); !r.OK {
			err = errors.New("it printed no result:\n" + out)
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// pair runs the program on b, with its server on a where it has one.
func (d *demo) pair(ctx context.Context, st demoStep) (out, note string, err error) {
	if !st.server {
		p := d.program("b", st.args)
		return p.output(ctx)
	}
	args := append([]string{}, st.args...)
	port, err := d.port()
	if err != nil {
		return "", "", err
	}
	args = append(args, "-p", fmt.Sprint(port))
	server := d.program("a", args)
	if err := server.start(); err != nil {
		return "", "", err
	}
	defer server.stop()
	if err := server.listening(ctx, port); err != nil {
		return "", "", fmt.Errorf("server: %w\n%s", err, server.out.String())
	}
	client := d.program("b", append(args, d.lab.Hosts[0].NICs[0].Addrs[0].Addr().String()))
	if err := client.start(); err != nil {
		return "", "", err
	}
	defer client.stop()
	var during error
	if st.during != nil {
		note, during = st.during(ctx, d)
	}
	if err := client.wait(ctx); err != nil {
		return "", note, fmt.Errorf("%w\n%s\nserver:\n%s", err, client.out.String(), server.out.String())
	}
	if err := server.wait(ctx); err != nil {
		return "", note, fmt.Errorf("server: %w\n%s", err, server.out.String())
	}
	return client.out.String(), note, during
}

// port is the perftest default inside namespaces; where all hosts are this machine, any free one.
func (d *demo) port() (int, error) {
	if d.lab.Isolation != lab.IsolateNone {
		return 18515, nil
	}
	return freePort()
}

// txBytes is what host b's planes have sent.
func (d *demo) txBytes() ([]uint64, error) {
	for _, t := range d.ts {
		var s api.Stats
		if err := t.call("stats", "", nil, &s); err != nil {
			return nil, err
		}
		for _, n := range s.NICs {
			if n.Name != "b/mr0" {
				continue
			}
			var bytes []uint64
			for _, p := range n.Planes {
				bytes = append(bytes, p.Counters["mroce_tx_bytes_total"])
			}
			return bytes, nil
		}
	}
	return nil, errors.New("b/mr0 is not served")
}

// rates measures what b's planes send, in Gbit/s.
func (d *demo) rates(ctx context.Context, span time.Duration) ([]float64, error) {
	a, err := d.txBytes()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := wait(ctx, span); err != nil {
		return nil, err
	}
	b, err := d.txBytes()
	if err != nil {
		return nil, err
	}
	secs := time.Since(begin).Seconds()
	var r []float64
	for i := range a {
		r = append(r, float64(b[i]-a[i])*8/secs/1e9)
	}
	return r, nil
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// moving waits until host b sends in earnest: programs meet over TCP first, and a segment lost there costs a second.
func (d *demo) moving(ctx context.Context) error {
	for end := time.Now().Add(10 * time.Second); ; {
		v, err := d.rates(ctx, 200*time.Millisecond)
		if err != nil || sum(v) > 0.05 {
			return err
		}
		if time.Now().After(end) {
			return errors.New("the program does not begin to send")
		}
	}
}

// pullPlane cuts a plane when the program has begun and mends it two seconds later; the program must not notice.
func pullPlane(ctx context.Context, d *demo) (string, error) {
	cut := func(word string) error {
		_, err := impairLab(d.lab, serve.ImpairArgs{Planes: []int{demoPlane}, Words: []string{word}})
		return err
	}
	if err := d.moving(ctx); err != nil {
		return "", err
	}
	before, err := d.rates(ctx, 500*time.Millisecond)
	if err != nil {
		return "", err
	}
	if err := cut("down"); err != nil {
		return "", err
	}
	err = wait(ctx, 500*time.Millisecond) // the NIC notices
	var out []float64
	if err == nil {
		out, err = d.rates(ctx, 1500*time.Millisecond)
	}
	if e := cut("up"); e != nil || err != nil {
		return "", errors.Join(err, e)
	}
	if err := wait(ctx, time.Second); err != nil {
		return "", err
	}
	after, err := d.rates(ctx, 500*time.Millisecond)
	if err != nil {
		return "", err
	}
	note := fmt.Sprintf("%.1f before, %.1f while it was out, %.1f after", sum(before), sum(out), sum(after))
	switch {
	case sum(out) < 0.05*sum(before):
		return note, errors.New("nothing moved while the plane was out: " + note)
	case after[demoPlane] == 0:
		return note, fmt.Errorf("plane %d was not used again: %s", demoPlane, note)
	}
	return note, nil
}
