package node

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/vnet"
)

// Diary asks the agent of an instance what happened inside after an entry.
// guest.ErrNoDiary when the agent is too old to know. What it says is the
// guest's word.
func (n *Node) Diary(ctx context.Context, id cay.InstanceID, after int64) (guest.Diary, error) {
	n.mu.Lock()
	inst := n.instances[id]
	if inst != nil && n.bySandbox[inst.spec.Sandbox] != inst {
		inst = nil // it is being made, or over
	}
	n.mu.Unlock()
	if inst == nil {
		return guest.Diary{}, cay.Errorf(cay.NotFound, "instance %s does not run on this machine", id)
	}
	return n.cfg.Diary(ctx, inst.slot, inst.spec.AccessToken, after)
}

func readDiary(ctx context.Context, slot vnet.Slot, token string, after int64) (guest.Diary, error) {
	client := guest.NewClient(slot.Addr)
	defer client.Close()
	return client.Diary(ctx, token, after)
}
