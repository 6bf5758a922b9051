//go:build dpdk

package dpdk

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/coll"
)

// TestCollectives: two ranks through the plugin of RCCL and NCCL, every value checked, without loss and with it.
func TestCollectives(t *testing.T) {
	ends := [2]*nic{}
	ends[0], ends[1] = pair(t, 2)
	for i, loss := range []string{"0%", "1%", "10%"} {
		for _, n := range ends {
			n.impair("loss=" + loss)
		}
		most := "1048576"
		if full() {
			most = "67108864"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		rows := 0
		err := coll.Run(ctx, coll.Options{
			Rank: build(t, "lib/collbench-rank"), Ranks: 2, Root: fmt.Sprintf("127.0.0.1:%d", 20000+(os.Getpid()+i)%20000),
			Args: append(strings.Fields("--min 8 --factor 16 --iters 2 --colls all-reduce,all-reduce-tree,all-gather,reduce-scatter,broadcast,all-to-all,send-recv"),
				"--max", most, "--net", build(t, "lib/librccl-net.so")),
			Command: func(ctx context.Context, rank int, program ...string) *exec.Cmd {
				c := exec.CommandContext(ctx, program[0], program[1:]...)
				c.Env = append(append([]string{}, ends[rank].env...), "MR_SOCKET="+ends[rank].socket)
				c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
				return c
			},
			Line: func(_ *coll.Head, row *coll.Row, _ *coll.Storm, _ json.RawMessage) error {
				if row != nil {
					rows++
					if row.Wrong != 0 {
						t.Errorf("%s of %d bytes, loss %s: %d values are wrong", row.Collective, row.Size, loss, row.Wrong)
					}
				}
				return nil
			},
		})
		cancel()
		if err != nil || rows < 35 {
			t.Errorf("loss %s: %d measurements: %v", loss, rows, err)
		}
	}
}
