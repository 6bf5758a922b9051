//go:build dpdk

package cmd

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/metaroce/metaroce/daemon/serve"
)

// config is what the daemon is started with.
type config struct {
	serve.Config
	EAL    []string `json:"eal"`             // arguments of DPDK's environment
	Busy   bool     `json:"busy,omitempty"`  // poll without a pause
	Cores  []int    `json:"cores,omitempty"` // that the loops are bound to, in turn; none = wherever there is room
	Shards int      `json:"shards"`          // the NICs share their ports, and have a loop each
}

func (c *config) write(path string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

func readConfig(path string) (*config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &config{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
