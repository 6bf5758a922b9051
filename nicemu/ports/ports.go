// Package ports is what nicemu adds to a daemon: wires over TAPs, sockets and memory, and interfaces in the host.
package ports

import (
	"context"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/nicemu/wire/mem"
)

// Serve is the daemon: it serves the configuration at path until it is told to end.
func Serve(ctx context.Context, path string) error {
	cfg, err := serve.Read(path)
	if err != nil {
		return fail.Failf("cannot read the daemon's configuration: %w", err)
	}
	fabric := mem.NewFabric()
	return serve.Run(ctx, cfg, serve.Host{
		OpenWire: func(n *serve.NIC, index int, w serve.Wire) (device.Port, error) {
			return openWire(fabric, n, index, w)
		},
		OpenHostPort: openHostPort,
		Beside:       followHostPorts,
	})
}
