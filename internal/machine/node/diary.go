package node

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// Diary asks the agent of an instance what happened inside after an entry.
// toagent.ErrNoDiary when the agent is too old to know. The entries are the guest's
// word.
func (n *Node) Diary(ctx context.Context, id cay.InstanceID, after int64) (guest.Diary, error) {
	inst, err := n.serving(id)
	if err != nil {
		return guest.Diary{}, err
	}
	return n.cfg.Diary(ctx, inst.slot, inst.spec.AccessToken, after)
}

// Responds asks the agent of an instance whether it answers, until ctx ends.
func (n *Node) Responds(ctx context.Context, id cay.InstanceID) error {
	inst, err := n.serving(id)
	if err != nil {
		return err
	}
	return n.cfg.Ready(ctx, inst.slot, guest.AgentPort)
}

// serving finds an instance that requests reach.
func (n *Node) serving(id cay.InstanceID) (*instance, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inst := n.instances[id]
	if inst == nil || n.bySandbox[inst.spec.Sandbox] != inst { // it is being made, or over
		return nil, cay.Errorf(cay.NotFound, "instance %s does not run on this machine", id)
	}
	return inst, nil
}

func readDiary(ctx context.Context, slot vnet.Slot, token string, after int64) (guest.Diary, error) {
	client := toagent.New(slot.Addr)
	defer client.Close()
	return client.Diary(ctx, token, after)
}
