package rest

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/fleet"
)

// Pages of tags and of their assignments, as E2B's console asks for them.
const (
	tagsPage        = 25
	groupPage       = 6
	assignmentsPage = 50
	maxSearch       = 256
)

// AssignTags points tags at a build.
func (s *server) AssignTags(ctx context.Context, r e2b.AssignTagsRequestObject) (e2b.AssignTagsResponseObject, error) {
	build, tags, err := s.fleet.AssignTags(ctx, callerOf(ctx), r.Body.Target, r.Body.Tags)
	return e2b.AssignTags201JSONResponse{BuildID: string(build), Tags: notNull(tags)}, err
}

// RemoveTags takes tags away.
func (s *server) RemoveTags(ctx context.Context, r e2b.RemoveTagsRequestObject) (e2b.RemoveTagsResponseObject, error) {
	return e2b.RemoveTags204Response{}, s.fleet.RemoveTags(ctx, callerOf(ctx), r.Body.Name, r.Body.Tags)
}

// ListTags lists a template's tags.
func (s *server) ListTags(ctx context.Context, r e2b.ListTagsRequestObject) (e2b.ListTagsResponseObject, error) {
	tags, err := s.fleet.Tags(ctx, callerOf(ctx), r.TemplateID)
	out := make(e2b.ListTags200JSONResponse, len(tags))
	for i, t := range tags {
		out[i].Tag, out[i].BuildID, out[i].CreatedAt = t.Name, string(t.Build), t.CreatedAt
	}
	return out, err
}

// CountTags counts the tags that point to a build that is ready.
func (s *server) CountTags(ctx context.Context, r e2b.CountTagsRequestObject) (e2b.CountTagsResponseObject, error) {
	all, err := s.fleet.TagAssignments(ctx, callerOf(ctx), r.TemplateID)
	return e2b.CountTags200JSONResponse{Total: len(grouped(all))}, err
}

// TagExists says whether a tag points to a build that is ready.
func (s *server) TagExists(ctx context.Context, r e2b.TagExistsRequestObject) (e2b.TagExistsResponseObject, error) {
	tag, err := fleet.CleanTag(r.Params.Tag)
	if err != nil {
		return nil, err
	}
	all, err := s.fleet.TagAssignments(ctx, callerOf(ctx), r.TemplateID)
	exists := slices.ContainsFunc(all, func(a cay.TagAssignment) bool { return a.Tag == tag })
	return e2b.TagExists200JSONResponse{Exists: exists, NormalizedTag: tag}, err
}

// ListTagAssignments lists the builds that a tag pointed to.
func (s *server) ListTagAssignments(ctx context.Context, r e2b.ListTagAssignmentsRequestObject) (e2b.ListTagAssignmentsResponseObject, error) {
	n, err := pageSize("limit", r.Params.Limit, assignmentsPage)
	if err != nil {
		return nil, err
	}
	tag, err := fleet.CleanTag(r.Tag)
	if err != nil {
		return nil, err
	}
	all, err := s.fleet.TagAssignments(ctx, callerOf(ctx), r.TemplateID)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(a cay.TagAssignment) bool { return a.Tag != tag })
	page, next, err := afterCursor(all, "cursor", r.Params.Cursor, n, newestFirst, assignmentKey)
	return e2b.ListTagAssignments200JSONResponse{Data: wireAssignments(page), NextCursor: next}, err
}

// ListTagGroups lists tags, each with the builds that it pointed to last.
func (s *server) ListTagGroups(ctx context.Context, r e2b.ListTagGroupsRequestObject) (e2b.ListTagGroupsResponseObject, error) {
	each, err := pageSize("assignmentLimit", r.Params.AssignmentLimit, groupPage)
	if err != nil {
		return nil, err
	}
	n, err := pageSize("tagsLimit", r.Params.TagsLimit, tagsPage)
	if err != nil {
		return nil, err
	}
	order, ok := groupOrders()[value(r.Params.Sort, "latest_desc")]
	if !ok {
		return nil, cay.Errorf(cay.Invalid, "sort: must be latest_desc, latest_asc, name_asc or name_desc")
	}
	search := strings.ToLower(value(r.Params.Search, ""))
	if len(search) > maxSearch {
		return nil, cay.Errorf(cay.Invalid, "search: has more than %d bytes", maxSearch)
	}
	all, err := s.fleet.TagAssignments(ctx, callerOf(ctx), r.TemplateID)
	if err != nil {
		return nil, err
	}
	groups := grouped(all)
	latest := make([]cay.TagAssignment, 0, len(groups)) // one a tag: its newest
	for tag, list := range groups {
		if strings.Contains(tag, search) {
			latest = append(latest, list[0])
		}
	}
	slices.SortFunc(latest, order)
	page, next, err := afterCursor(latest, "tagsCursor", r.Params.TagsCursor, n, order,
		func(a cay.TagAssignment) cursorKey { return cursorKey{a.At, a.Tag} })
	out := e2b.ListTagGroups200JSONResponse{Tags: []e2b.TagGroup{}, NextCursor: next}
	for _, a := range page {
		list := groups[a.Tag]
		out.Tags = append(out.Tags, e2b.TagGroup{
			Tag: a.Tag, Assignments: wireAssignments(list[:min(each, len(list))]), HasMore: len(list) > each,
		})
	}
	return out, err
}

type order = func(a, b cay.TagAssignment) int

func groupOrders() map[string]order {
	name := func(a, b cay.TagAssignment) int { return strings.Compare(a.Tag, b.Tag) }
	reverse := func(o order) order { return func(a, b cay.TagAssignment) int { return o(b, a) } }
	latest := func(a, b cay.TagAssignment) int { return cmp.Or(b.At.Compare(a.At), name(a, b)) }
	return map[string]order{
		"name_asc": name, "name_desc": reverse(name), "latest_desc": latest, "latest_asc": reverse(latest),
	}
}

// newestFirst is the order in which the store lists the assignments of a tag.
func newestFirst(a, b cay.TagAssignment) int {
	return cmp.Or(b.At.Compare(a.At), strings.Compare(a.ID, b.ID))
}

// grouped sorts assignments by their tags; each list is newest first.
func grouped(all []cay.TagAssignment) map[string][]cay.TagAssignment {
	out := make(map[string][]cay.TagAssignment)
	for _, a := range all {
		out[a.Tag] = append(out[a.Tag], a)
	}
	return out
}

// cursorKey is the place of an item: its time and its name.
type cursorKey struct {
	at   time.Time
	name string
}

func assignmentKey(a cay.TagAssignment) cursorKey { return cursorKey{a.At, a.ID} }

// afterCursor takes a page out of a list that is in order. A cursor names a
// place and not an item, so that it holds when the item is gone.
func afterCursor(list []cay.TagAssignment, field string, cursor *string, n int, by order, key func(cay.TagAssignment) cursorKey) (page []cay.TagAssignment, next *string, err error) {
	if text := value(cursor, ""); text != "" {
		place, ok := decodeCursor(text)
		if !ok {
			return nil, nil, cay.Errorf(cay.Invalid, "%s: is not from an earlier page", field)
		}
		at := cay.TagAssignment{At: place.at, Tag: place.name, ID: place.name}
		i := slices.IndexFunc(list, func(a cay.TagAssignment) bool { return by(a, at) > 0 })
		if i < 0 {
			i = len(list)
		}
		list = list[i:]
	}
	if len(list) <= n {
		return list, nil, nil
	}
	text := encodeCursor(key(list[n-1]))
	return list[:n], &text, nil
}

func encodeCursor(k cursorKey) string {
	return base64.RawURLEncoding.EncodeToString([]byte(k.at.UTC().Format(tokenTime) + tokenSeparator + k.name))
}

func decodeCursor(text string) (cursorKey, bool) {
	if len(text) > maxSearch*2 {
		return cursorKey{}, false
	}
	plain, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return cursorKey{}, false
	}
	at, name, found := strings.Cut(string(plain), tokenSeparator)
	stamp, err := time.Parse(tokenTime, at)
	return cursorKey{stamp, name}, found && err == nil
}

// pageSize reads the size of a page.
func pageSize(field string, p *int32, usual int32) (int, error) {
	n := value(p, usual)
	if n < 1 || n > maxPage {
		return 0, cay.Errorf(cay.Invalid, "%s: must be 1 to %d", field, maxPage)
	}
	return int(n), nil
}

func wireAssignments(list []cay.TagAssignment) []e2b.TagAssignment {
	out := make([]e2b.TagAssignment, 0, len(list))
	for _, a := range list {
		out = append(out, e2b.TagAssignment{
			AssignmentID: a.ID, BuildID: string(a.Build), AssignedAt: a.At,
			BuildCreatedAt: a.BuildCreated, BuildFinishedAt: wireTime(a.BuildFinished),
		})
	}
	return out
}
