package labfile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/impair"
)

func parse(t *testing.T, text string) (*Lab, error) {
	t.Helper()
	return Parse("lab.yaml", []byte(text))
}

// The words are listed here for their names only; daemon/impair knows what they mean.
func TestWordsAreThoseOfImpair(t *testing.T) {
	var theirs []string
	for line := range strings.Lines(impair.Help()) {
		if w := strings.Fields(line)[0]; w != "down" && w != "clear" && w != "rx.WORD" {
			theirs = append(theirs, w)
		}
	}
	if !slices.Equal(theirs, impairWords) {
		t.Errorf("daemon/impair has %v", theirs)
	}
}

func TestBuiltinsParse(t *testing.T) {
	for _, b := range Builtins {
		l, err := parse(t, b.YAML)
		if err != nil {
			t.Fatalf("%s: %v", b.Name, err)
		}
		if l.Name != b.Name || l.Planes != 4 || len(l.Hosts) < 2 {
			t.Errorf("%s: got %+v", b.Name, l)
		}
	}
	if _, err := parse(t, Template); err != nil {
		t.Fatalf("template: %v", err)
	}
	// What the template only shows must be right as well.
	var on strings.Builder
	for line := range strings.Lines(Template) {
		if s, ok := strings.CutPrefix(line, "# "); ok && !strings.HasPrefix(s, "A lab") {
			line = s
		} else if s, ok := strings.CutPrefix(line, "#   "); ok {
			line = "  " + s
		}
		on.WriteString(line)
	}
	l, err := parse(t, on.String())
	if err != nil {
		t.Fatalf("template with everything on: %v\n%s", err, on.String())
	}
	if len(l.Impair) != 2 || l.Impair[1].At != 10*time.Second || l.Impair[1].Words[0] != "down" || l.Plane.RateBps != 10e9 || l.Plane.ECNMax != 192<<10 {
		t.Errorf("template with everything on: got %+v", l)
	}
}

func TestGood(t *testing.T) {
	l, err := parse(t, `
hosts:
  b: {nics: {mr0: {addr: [10.0.0.1/24, fd00::1/64]}, mr1: {addr: 10.1.0.1/24}}}
  a: {addr: 10.0.0.2/24}
`)
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "lab" || l.Planes != 1 || l.Wire != "auto" || l.Transport != "auto" {
		t.Errorf("defaults: %+v", l)
	}
	if got := strings.Join(l.NICNames(), " "); got != "b/mr0 b/mr1 a/mr0" {
		t.Errorf("NICs %s", got)
	}
	if len(l.Hosts[0].NICs[0].Addrs) != 2 {
		t.Errorf("addresses %v", l.Hosts[0].NICs[0].Addrs)
	}
}

func TestErrors(t *testing.T) {
	const hosts = "hosts: {a: {addr: 10.0.0.1/24}, b: {addr: 10.0.0.2/24}}\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "lab.yaml:1: the file is empty"},
		{"list", "- a\n", "lab.yaml:1: a lab is a list of"},
		{"syntax", "name: x\nhosts: {a: {addr: 10.0.0.1/24}\n", "lab.yaml:"},
		{"tab", "name: x\n\thosts: 3\n", "lab.yaml:2"},
		{"two documents", hosts + "---\n" + hosts, "more than one YAML document"},
		{"unknown key", hosts + "plannes: 4\n", `lab.yaml:2: unknown key "plannes" in the lab; did you mean "planes"?`},
		{"far key", hosts + "zzzzzzzz: 4\n", `lab.yaml:2: unknown key "zzzzzzzz" in the lab; known: hosts, impair`},
		{"twice", hosts + "planes: 4\nplanes: 4\n", "lab.yaml:3"},
		{"no hosts", "name: x\n", "lab.yaml:1: the lab has no hosts"},
		{"hosts list", "hosts: [a, b]\n", "lab.yaml:1: hosts must be a list such as"},
		{"host name", "hosts: {A_b: {addr: 10.0.0.1/24}}\n", `host name "A_b"`},
		{"no address", "hosts: {a: {}}\n", "host a has no address"},
		{"no prefix", "hosts: {a: {addr: 10.0.0.1}}\n", "prefix length such as 10.0.0.1/24"},
		{"loopback", "hosts: {a: {addr: 127.0.0.1/8}}\n", "cannot be the address of a NIC"},
		{"same address", "hosts: {a: {addr: 10.0.0.1/24}, b: {addr: 10.0.0.1/24}}\n", "a/mr0 has the address 10.0.0.1 already"},
		{"both", "hosts: {a: {addr: 10.0.0.1/24, nics: {mr0: {addr: 10.0.0.2/24}}}}\n", "not both"},
		{"planes word", hosts + "planes: many\n", `lab.yaml:2: planes: "many" is not a number from 1 to 16`},
		{"planes zero", hosts + "planes: 0\n", "from 1 to 16"},
		{"wire", hosts + "wire: tab\n", `wire: unknown "tab"; did you mean "tap"?`},
		{"transport of a host", "hosts:\n  a: {addr: 10.0.0.1/24, transport: rocev3}\n", `did you mean "rocev2"`},
		{"transport", hosts + "transport: tcpip\n", `one of metaroce, rocev2, auto`},
		{"rate", hosts + "plane: {rate: 10}\n", `lab.yaml:2: rate: "10" is not a rate such as 10Gbit`},
		{"delay", hosts + "plane: {delay: 5}\n", `"5" is not a time such as 20us`},
		{"noise", hosts + "plane: {noise: 2}\n", `"2" is not a time such as 20us`},
		{"long noise", hosts + "plane: {noise: 2s}\n", "longer than 100ms"},
		{"mtu", hosts + "plane: {mtu: 99}\n", "mtu:"},
		{"ecn", hosts + "plane: {ecn: {min: 2KiB, max: 1KiB}}\n", "min not above max"},
		{"plane key", hosts + "plane: {dealy: 5us}\n", `did you mean "delay"?`},
		{"impair map", hosts + "impair: {loss: 1%}\n", "impair must be a list"},
		{"impair nothing", hosts + "impair:\n  - {planes: 0}\n", "lab.yaml:3: this impairment does nothing"},
		{"impair plane", hosts + "planes: 2\nimpair:\n  - {loss: 1%}\n  - {planes: 2, loss: 1%}\n", "lab.yaml:5: plane 2: the lab has planes 0 to 1"},
		{"impair host", hosts + "impair:\n  - {hosts: c, loss: 1%}\n", `lab.yaml:3: no host "c"`},
		{"impair word", hosts + "impair:\n  - {lost: 1%}\n", `unknown key "lost" in impair; did you mean "loss"?`},
		{"impair value", hosts + "impair:\n  - {loss: nonsense}\n", `lab.yaml:3: loss: "nonsense" is not a share such as 1%`},
		{"impair share", hosts + "impair:\n  - {loss: 1}\n", "needs a percent sign"},
		{"impair down", hosts + "impair:\n  - {down: perhaps}\n", "neither true nor false"},
		{"name", "name: My Lab\n" + hosts, `name "My Lab"`},
		{"null", "name:\n" + hosts, "name must be a single value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	known := []string{"status", "stats", "paths", "plane"}
	for in, want := range map[string]string{"statsu": "status", "sttas": "stats", "plan": "plane", "x": "", "elephant": "", "pain": ""} {
		if got := Nearest(in, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range Builtins {
		f.Add(b.YAML)
	}
	f.Add(Template)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse("f.yaml", []byte(text))
		if (l == nil) == (err == nil) && err == nil {
			t.Fatal("neither lab nor error")
		}
	})
}
