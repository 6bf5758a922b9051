package cmd

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/doctor"
)

func testEnv() (*env, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	return &env{out: &out, err: &errs, version: "test"}, &out, &errs
}

func TestArrange(t *testing.T) {
	e, _, _ := testEnv()
	for in, want := range map[string]string{
		"lab up FILE --json":                       "lab up --json FILE",
		"lab up FILE --wire mem --daemon-per-host": "lab up --wire mem --daemon-per-host FILE",
		"lab up --wire=mem FILE -v":                "lab up --wire=mem -v FILE",
		"lab exec a ibv_devinfo -v":                "lab exec a -- ibv_devinfo -v",
		"lab exec a -- ibv_devinfo -v":             "lab exec a -- ibv_devinfo -v",
		"lab exec --lab x a -- p --json":           "lab exec --lab x a -- p --json",
		"lab exec a --lab x -- p":                  "lab exec --lab x a -- p",
		"run ib_write_bw -x 0":                     "run -- ib_write_bw -x 0",
		"run --nic a -- ib_write_bw -x 0":          "run --nic a -- ib_write_bw -x 0",
		"lab run F --wire mem -- sh -c x":          "lab run --wire mem F -- sh -c x",
		"lab impair loss=1% --planes 1 delay=1us":  "lab impair --planes 1 loss=1% delay=1us",
		"lab capture a --plane 0 -w f":             "lab capture --plane 0 -w f a",
		"plane down 2 --nic a/mr0":                 "plane --nic a/mr0 down 2",
		"-v status":                                "-v status",
		"status --json":                            "status --json",
		"lab help exec":                            "lab exec --help",
		"lab nonsense --generate-bash-completion":  "lab --generate-bash-completion nonsense",
		"":                            "",
		"lab capture a -w - --for 1s": "lab capture -w - --for 1s a",
		"lab down -- two-hosts":       "lab down two-hosts",
		"lab exec":                    "lab exec",
		"up --wire udp:1.2.3.4 --wire udp:1.2.3.5 ": "up --wire udp:1.2.3.4 --wire udp:1.2.3.5",
	} {
		got, err := arrange(e.app(), append([]string{"nicemu"}, strings.Fields(in)...))
		if err != nil || strings.Join(got[1:], " ") != want {
			t.Errorf("%q\n got %q\nwant %q %v", in, strings.Join(got[1:], " "), want, err)
		}
	}
}

// upOf runs the flag parsing of `up` only.
func upOf(t *testing.T, args ...string) (serve.NIC, error) {
	t.Helper()
	e, _, _ := testEnv()
	var nic serve.NIC
	var err error
	app := e.app()
	for _, c := range app.Commands {
		if c.Name == "up" {
			c.Action = func(c *cli.Context) error {
				nic, err = upNIC(c)
				return nil
			}
		}
	}
	if e := app.Run(append([]string{"nicemu", "up"}, args...)); e != nil {
		return nic, e
	}
	return nic, err
}

func TestUpFlags(t *testing.T) {
	n, err := upOf(t, "--nic", "h/mr1", "--addr", "10.0.0.1/24", "--addr", "fd00::1", "--wire", "udp:192.0.2.1", "--wire", "udp:198.51.100.1:5000",
		"--peer", "10.0.0.2=0:192.0.2.2", "--peer", "10.0.0.2=1:198.51.100.2:5000")
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr
	want := serve.NIC{
		Transport: "auto",
		Name:      "h/mr1", Dev: "mr1", Addrs: []netip.Addr{a("10.0.0.1"), a("fd00::1")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/128")},
		Planes: []serve.Wire{
			{URL: "udp:192.0.2.1", MTU: 4300, Peers: []serve.Peer{{GID: a("10.0.0.2"), At: netip.MustParseAddrPort("192.0.2.2:4791")}}},
			{URL: "udp:198.51.100.1:5000", MTU: 4300, Peers: []serve.Peer{{GID: a("10.0.0.2"), At: netip.MustParseAddrPort("198.51.100.2:5000")}}},
		},
	}
	if d := cmp.Diff(want, n, cmp.Comparer(func(x, y netip.Addr) bool { return x == y }), cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y }), cmp.Comparer(func(x, y netip.Prefix) bool { return x == y })); d != "" {
		t.Error(d)
	}
	for in, why := range map[string]string{
		"":                                  "which address?",
		"--addr ten":                        "is not an address",
		"--addr 10.0.0.1 --wire ud:1.2.3.4": "did you mean udp:?",
		"--addr 10.0.0.1 --wire eth0":       "a wire is tap:NAME",
		"--addr 10.0.0.1 --nic a/b/c":       "a NIC is HOST/mrN",
		"--addr 10.0.0.1 --peer 10.0.0.2=1.2.3.4":                                       "plane 0 is no udp wire",
		"--addr 10.0.0.1 --wire udp:1.2.3.4 --peer 1.2.3.4":                             "no GID in front",
		"--addr 10.0.0.1 --wire udp:1.2.3.4 --peer 10.0.0.2=x":                          "no address",
		"--addr 10.0.0.1 --wire udp:1.2.3.4 --peer 10.0.0.2=7:1.2.3.4":                  "there are planes 0 to 0",
		"--addr 10.0.0.1 --wire udp:1.2.3.4 --wire udp:1.2.3.5 --peer 10.0.0.2=1.2.3.4": "it must name one",
		"--adr 10.0.0.1": "did you mean --addr?",
	} {
		if _, err := upOf(t, strings.Fields(in)...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("up %s: got %v, want %q", in, err, why)
		}
	}
}

// TestHelp: every command has help, and it begins with an example.
func TestHelp(t *testing.T) {
	e, _, _ := testEnv()
	var walk func(path []string, cmds []*cli.Command)
	walk = func(path []string, cmds []*cli.Command) {
		for _, c := range cmds {
			if c.Hidden || c.Name == "help" {
				continue
			}
			p := append(slices.Clone(path), c.Name)
			e, out, _ := testEnv()
			if err := e.app().Run(append(append([]string{"nicemu"}, p...), "--help")); err != nil {
				t.Errorf("%v --help: %v", p, err)
			}
			if !strings.HasPrefix(out.String(), "Example:\n  ") {
				t.Errorf("%v --help does not begin with an example:\n%s", p, out)
			}
			walk(p, c.Subcommands)
		}
	}
	app := e.app()
	walk(nil, app.Commands)
}

func TestNumberList(t *testing.T) {
	for in, want := range map[string][]int{"": nil, "1": {1}, "0,2": {0, 2}, "0-2": {0, 1, 2}, "3,0-1": {3, 0, 1}} {
		if got, err := numberList(in, 4); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v", in, got, err)
		}
	}
	for _, in := range []string{"x", "4", "-1", "2-1", "1,", "0-4"} {
		if got, err := numberList(in, 4); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

func TestColumn(t *testing.T) {
	const bw = "-----\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536      5000             6.80               6.34               0.012098\n-----\n"
	if v, ok := column(4)(bw); !ok || v != 6.34 {
		t.Errorf("%v %v", v, ok)
	}
	if _, ok := column(4)("nothing"); ok {
		t.Error("found a figure in nothing")
	}
	if v, ok := pingpongMicros("8192000 bytes in 0.51 seconds = 128.46 Mbit/sec\n1000 iters in 0.51 seconds = 510.18 usec/iter\n"); !ok || v != 510.18 {
		t.Errorf("%v %v", v, ok)
	}
}

var update = flag.Bool("update", false, "rewrite testdata/json-fields.txt")

// TestJSONFields compares the fields of all --json output with testdata/json-fields.txt: scripts depend on them, so a
// change there is a decision.
func TestJSONFields(t *testing.T) {
	var b strings.Builder
	for _, x := range []struct {
		cmd string
		v   any
	}{
		{"status", api.Status{}}, {"stats", api.Stats{}}, {"stats --watch", rate{}}, {"paths", pathsInfo{}}, {"events", api.Event{}},
		{"deny, allow", api.PathChange{}}, {"probe", api.Probe{}}, {"profile show, profile set", api.Profiles{}}, {"profile list", api.ProfileInfo{}},
		{"doctor", doctor.Report{}}, {"lab ls, lab up, up", labInfo{}}, {"lab impair", serve.ImpairState{}}, {"demo", demoResult{}},
	} {
		b.WriteString(x.cmd + "\n")
		fields(&b, "  ", reflect.TypeOf(x.v))
	}
	const file = "testdata/json-fields.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); d != "" {
		t.Errorf("fields differ (go test ./nicemu/cmd -run JSONFields -update takes the new ones):\n%s", d)
	}
}

func fields(b *strings.Builder, indent string, t reflect.Type) {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		kind := f.Type
		list := ""
		for kind.Kind() == reflect.Slice || kind.Kind() == reflect.Pointer {
			if kind.Kind() == reflect.Slice {
				list = "[]"
			}
			kind = kind.Elem()
		}
		what := kind.Kind().String()
		switch kind.Kind() {
		case reflect.Struct:
			what = "object"
		case reflect.Int, reflect.Uint32, reflect.Uint64, reflect.Float64, reflect.Int64:
			what = "number"
		case reflect.Map:
			what = "object of numbers"
		case reflect.Interface:
			what = "anything"
		default:
		}
		b.WriteString(indent + name + " " + list + what + "\n")
		fields(b, indent+"  ", f.Type)
	}
}
