package view

import (
	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
)

// Daemon is the Source of a control socket. It connects when it is asked, and again after the daemon went away. Close
// ends the connection.
type Daemon struct {
	Socket string
	conn   *client.Client
}

func (d *Daemon) connect() (err error) {
	if d.conn == nil {
		if d.conn, err = client.Dial(d.Socket); err != nil {
			d.conn = nil
		}
	}
	return err
}

// SetAddrs tells the daemon of the addresses that the host's interface of a NIC has now.
func (d *Daemon) SetAddrs(nic string, addrs []string) error {
	if err := d.connect(); err != nil {
		return err
	}
	return d.conn.MgmtNIC("addresses", nic, api.AddressesArgs{Addrs: addrs}, nil)
}

// Ports is a Source.
func (d *Daemon) Ports() (p api.Ports, err error) {
	if err = d.connect(); err != nil {
		return p, err
	}
	if err = d.conn.Mgmt("ports", nil, &p); err != nil {
		d.Close()
	}
	return p, err
}

// Close ends the connection.
func (d *Daemon) Close() {
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
}
