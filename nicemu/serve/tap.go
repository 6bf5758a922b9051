package serve

import (
	"strings"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/wire/tap"
)

// What the drivers want of those who make TAPs for them.
const (
	HaveHost   = false // a host port
	TAPVnetHdr = true
)

// openTAP takes a TAP that a namespace holder made for us, or makes the one that the URL names.
func openTAP(rest string, size int, mac [6]byte, w Wire) (device.Port, error) {
	o := tap.Options{MTU: w.MTU, PacketMax: size, MAC: mac}
	if w.FD != 0 {
		return tap.New(w.FD, o)
	}
	name, query, _ := strings.Cut(rest, "?")
	for _, kv := range strings.Split(query, "&") {
		k, v, _ := strings.Cut(kv, "=")
		switch {
		case kv == "":
		case k == "bridge" && v != "":
			o.Bridge = v
		default:
			return nil, fail.Usagef("%s: unknown option %q; want tap:NAME[?bridge=BR]", w.URL, kv)
		}
	}
	p, err := tap.Open(name, o)
	if err != nil {
		return nil, fail.Lackf("%v", err)
	}
	return p, nil
}

func openHostPort(Wire) (device.Port, error) {
	return nil, fail.Lackf("a host port is not built in yet")
}
