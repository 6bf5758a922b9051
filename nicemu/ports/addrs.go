package ports

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/netdev"
)

// followHostPorts lets the NICs have the addresses of the host ports that we made ourselves. Those of labs are watched by who
// holds their namespaces.
func followHostPorts(ctx context.Context, cfg *serve.Config, log *slog.Logger) {
	nics := map[string]string{} // by interface
	var names []string
	for _, n := range cfg.NICs {
		if n.HostPort != nil && n.HostPort.FD == 0 {
			name := strings.TrimPrefix(n.HostPort.URL, "tap:")
			nics[name] = n.Name
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	err := netdev.Watch(ctx, -1, names, func(name string, addrs []netip.Addr) error {
		c, err := client.Dial(cfg.Socket)
		if err == nil {
			err = c.MgmtNIC("addresses", nics[name], api.AddressesArgs{Addrs: netdev.Texts(addrs)}, nil)
			_ = c.Close()
		}
		if err != nil {
			log.Warn("addresses", "interface", name, "err", err)
		}
		return netdev.Unheard(err)
	})
	if err != nil {
		log.Warn("GIDs do not follow addresses", "err", err)
	}
}
