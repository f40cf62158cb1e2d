package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// ListNetworks lists the members of private networks.
func (o own) ListNetworks(ctx context.Context, _ cayv1.ListNetworksRequestObject) (cayv1.ListNetworksResponseObject, error) {
	out := cayv1.ListNetworks200JSONResponse{}
	members, err := o.sandboxes.Members(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	for _, s := range members {
		out = append(out, cayv1.NetworkMember{
			Network: s.Network.Private.Name, Name: s.Network.Private.Member, SandboxID: string(s.ID), State: string(s.State),
		})
	}
	return out, nil
}

// JoinNetwork has a sandbox share a network.
func (o own) JoinNetwork(ctx context.Context, r cayv1.JoinNetworkRequestObject) (cayv1.JoinNetworkResponseObject, error) {
	if r.Body.Network == "" {
		return nil, cay.Errorf(cay.Invalid, "network: is required")
	}
	err := o.sandboxes.Join(ctx, callerOf(ctx), sandboxID(r.SandboxID), r.Body.Network, value(r.Body.Name, ""))
	if err != nil {
		return nil, err
	}
	return cayv1.JoinNetwork204Response{}, nil
}

// LeaveNetwork has a sandbox be in no private network.
func (o own) LeaveNetwork(ctx context.Context, r cayv1.LeaveNetworkRequestObject) (cayv1.LeaveNetworkResponseObject, error) {
	if err := o.sandboxes.Join(ctx, callerOf(ctx), sandboxID(r.SandboxID), "", ""); err != nil {
		return nil, err
	}
	return cayv1.LeaveNetwork204Response{}, nil
}

// GetBandwidth tells how fast a sandbox may send and receive.
func (o own) GetBandwidth(ctx context.Context, r cayv1.GetBandwidthRequestObject) (cayv1.GetBandwidthResponseObject, error) {
	s, err := o.sandboxes.Get(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	b := s.Network.Bandwidth
	return cayv1.GetBandwidth200JSONResponse{Up: pointer(b.Up), Down: pointer(b.Down)}, nil
}

// SetBandwidth bounds how fast a sandbox sends and receives.
func (o own) SetBandwidth(ctx context.Context, r cayv1.SetBandwidthRequestObject) (cayv1.SetBandwidthResponseObject, error) {
	b := cay.Bandwidth{Up: value(r.Body.Up, 0), Down: value(r.Body.Down, 0)}
	if err := o.sandboxes.SetBandwidth(ctx, callerOf(ctx), sandboxID(r.SandboxID), b); err != nil {
		return nil, err
	}
	return cayv1.SetBandwidth204Response{}, nil
}
