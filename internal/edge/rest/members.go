package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/accounts"
)

// ListMembers lists a team's members.
func (o own) ListMembers(ctx context.Context, _ cayv1.ListMembersRequestObject) (cayv1.ListMembersResponseObject, error) {
	list, err := o.accounts.Members(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListMembers200JSONResponse, 0, len(list))
	for _, m := range list {
		out = append(out, wireMember(m))
	}
	return out, nil
}

// AddMember has a person be in the team.
func (o own) AddMember(ctx context.Context, r cayv1.AddMemberRequestObject) (cayv1.AddMemberResponseObject, error) {
	m, err := o.accounts.AddMember(ctx, callerOf(ctx), r.Body.Email, value(r.Body.Name, ""), cay.Role(r.Body.Role))
	if err != nil {
		return nil, err
	}
	return cayv1.AddMember201JSONResponse(wireMember(m)), nil
}

// SetMemberRole gives a member another role.
func (o own) SetMemberRole(ctx context.Context, r cayv1.SetMemberRoleRequestObject) (cayv1.SetMemberRoleResponseObject, error) {
	if err := o.accounts.SetRole(ctx, callerOf(ctx), cay.PersonID(r.PersonID), cay.Role(r.Body.Role)); err != nil {
		return nil, err
	}
	return cayv1.SetMemberRole204Response{}, nil
}

// RemoveMember has a person be no member any more.
func (o own) RemoveMember(ctx context.Context, r cayv1.RemoveMemberRequestObject) (cayv1.RemoveMemberResponseObject, error) {
	if err := o.accounts.RemoveMember(ctx, callerOf(ctx), cay.PersonID(r.PersonID)); err != nil {
		return nil, err
	}
	return cayv1.RemoveMember204Response{}, nil
}

func wireMember(m accounts.Membership) cayv1.Member {
	return cayv1.Member{PersonID: string(m.Person), Email: m.Email, Name: pointer(m.Name), Role: string(m.Role), AddedAt: m.AddedAt.UTC()}
}

// ListAccessTokens lists the tokens of the person who asks.
func (o own) ListAccessTokens(ctx context.Context, _ cayv1.ListAccessTokensRequestObject) (cayv1.ListAccessTokensResponseObject, error) {
	list, err := o.accounts.AccessTokens(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListAccessTokens200JSONResponse, 0, len(list))
	for _, t := range list {
		out = append(out, wireToken(t))
	}
	return out, nil
}

func wireToken(t cay.AccessToken) cayv1.AccessToken {
	return cayv1.AccessToken{ID: t.ID, Name: t.Name, Mask: t.Mask, CreatedAt: t.CreatedAt.UTC()}
}

// AdminListPeople lists all people.
func (o own) AdminListPeople(ctx context.Context, _ cayv1.AdminListPeopleRequestObject) (cayv1.AdminListPeopleResponseObject, error) {
	list, err := o.accounts.People(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.AdminListPeople200JSONResponse, 0, len(list))
	for _, p := range list {
		out = append(out, wirePerson(p))
	}
	return out, nil
}

// AdminUpdatePerson disables or enables a person.
func (o own) AdminUpdatePerson(ctx context.Context, r cayv1.AdminUpdatePersonRequestObject) (cayv1.AdminUpdatePersonResponseObject, error) {
	p, err := o.accounts.DisablePerson(ctx, callerOf(ctx), cay.PersonID(r.PersonID), !r.Body.Disabled)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminUpdatePerson200JSONResponse(wirePerson(p)), nil
}

// AdminCreateAccessToken makes a token that stands for a person.
func (o own) AdminCreateAccessToken(ctx context.Context, r cayv1.AdminCreateAccessTokenRequestObject) (cayv1.AdminCreateAccessTokenResponseObject, error) {
	token, record, err := o.accounts.CreateTokenFor(ctx, callerOf(ctx), cay.PersonID(r.PersonID), r.Body.Name)
	if err != nil {
		return nil, err
	}
	out := wireToken(record)
	out.Token = &token
	return cayv1.AdminCreateAccessToken201JSONResponse(out), nil
}

func wirePerson(p cay.Person) cayv1.Person {
	return cayv1.Person{PersonID: string(p.ID), Email: p.Email, Name: pointer(p.Name), CreatedAt: p.CreatedAt.UTC(), Disabled: !p.DisabledAt.IsZero()}
}
