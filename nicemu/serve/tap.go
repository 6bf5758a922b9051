package serve

import (
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/nicemu/fail"
)

// What the TAP driver wants of those who make TAPs for it.
const (
	HaveTAP     = false
	HaveHost    = false
	TAPVnetHdr  = false
	errNoDriver = "TAP wires are not built in yet; use udp or mem"
)

func openTAP(_ string, _ int, _ Wire) (device.Port, error) { return nil, fail.Lackf(errNoDriver) }

func openHostPort(_ Wire) (device.Port, error) { return nil, fail.Lackf(errNoDriver) }
