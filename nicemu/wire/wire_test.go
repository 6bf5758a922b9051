package wire

import (
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/wire/mem"
)

func TestOpen(t *testing.T) {
	f := mem.NewFabric()
	for url, kind := range map[string]string{"mem:": "mem", "udp:127.0.0.1:0": "udp", "udp:[::1]:0": "udp"} {
		p, err := Open(url, Options{NIC: "a/mr0", Fabric: f, MTU: 4300})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if c := p.Caps(); c.Kind != kind || c.PacketMax != 4300-48 || !c.EthernetOK {
			t.Errorf("%s: %+v", url, c)
		}
		if c := p.Caps(); c.TimerNoise != 2*mono.Millisecond {
			t.Errorf("%s: noise %v", url, c.TimerNoise)
		}
		p.Close()
		for _, noise := range []mono.Duration{0, mono.Millisecond} {
			if p, err = Open(url, Options{NIC: "a/mr0", Fabric: f, Noise: &noise}); err != nil {
				t.Fatal(err)
			}
			if c := p.Caps(); c.TimerNoise != noise {
				t.Errorf("%s: noise %v instead of %v", url, c.TimerNoise, noise)
			}
			p.Close()
		}
	}
}

func TestErrors(t *testing.T) {
	for url, want := range map[string]string{
		"eth0":                   "the kinds are mem:, tap:NAME and udp:ADDR[:PORT]",
		"tcp:1.2.3.4":            `unknown wire "tcp"`,
		"mem:":                   "no fabric",
		"mem:x":                  "takes no name",
		"udp:host":               "is not udp:ADDR",
		"udp:192.0.2.77":         "no address 192.0.2.77",
		"tap:":                   "no name of an interface",
		"tap:waytoolongforaname": "no name of an interface",
		"tap:t?bridg=b":          `unknown key "bridg"`,
		"tap:t?mtu=x":            "mtu=x is not a number",
		"dpdk:0":                 "mroce-dpdk",
	} {
		if p, err := Open(url, Options{}); err == nil || p != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %q", url, p, err, want)
		}
	}
}
