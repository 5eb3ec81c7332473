package conformance

import (
	"slices"
	"time"
)

func listCases() []kase {
	return []kase{
		both("CORE-LIST-001", listIsOfTheCaller, needOther),
		both("CORE-LIST-002", pagesFollow),
		both("CORE-LIST-003", newestFirst),
		both("CORE-LIST-004", listIsNeverNull),
		both("CORE-LIST-005", artifactsOnRequest),
		both("CORE-LIST-006", filtersFilter),
	}
}

func ids(tasks []any) (all []string) {
	for _, k := range tasks {
		all = append(all, text(k, "id"))
	}
	return all
}

// pages reads a list to its end.
func (x *trial) pages(params object) (tasks []any) {
	x.Helper()
	for range 100 {
		r := x.ok(opList, params)
		tasks = append(tasks, list(r.result, "tasks")...)
		token, is := r.get("nextPageToken").(string)
		if !is {
			x.Fatalf("there is no nextPageToken: %.300s", r.raw)
		}
		if token == "" {
			return tasks
		}
		next := object{"pageToken": token}
		for name, v := range params {
			if name != "pageToken" {
				next[name] = v
			}
		}
		params = next
	}
	x.Fatalf("there are more than 100 pages")
	return nil
}

// inContext makes tasks in a context of their own.
func (x *trial) inContext(n int) (context string, tasks []string) {
	x.Helper()
	context = unique("context")
	for range n {
		k := x.ok(opSend, x.message("listed", func(m object) { m["contextId"] = context })).task()
		tasks = append(tasks, text(k, "id"))
	}
	return context, tasks
}

func listIsOfTheCaller(x *trial) {
	context, mine := x.inContext(2)
	y := x.as(x.other)
	theirs := text(y.ok(opSend, y.message("x", func(m object) { m["contextId"] = context })).task(), "id")
	x.want(sameSet(ids(x.pages(object{"contextId": context})), mine), "the list is not the caller's two tasks")
	x.want(sameSet(ids(y.pages(object{"contextId": context})), []string{theirs}), "the other one's list is not their task")
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func pagesFollow(x *trial) {
	context, made := x.inContext(5)
	for _, size := range []int{1, 2, 5, 100} {
		got := ids(x.pages(object{"contextId": context, "pageSize": size}))
		x.want(sameSet(got, made) && len(got) == len(made), "pages of %d give %v, want %v", size, got, made)
	}
	first := x.ok(opList, object{"contextId": context, "pageSize": 2})
	x.want(first.get("pageSize") == 2.0 && first.get("totalSize") == 5.0, "the page says %.300s", first.raw)
	r := x.call(opList, object{"pageToken": "no-token-of-ours"})
	x.refused(r, invalid())
	x.names(r, "pageToken")
}

func newestFirst(x *trial) {
	context, made := x.inContext(3)
	slices.Reverse(made)
	tasks := x.pages(object{"contextId": context})
	for i := 1; i < len(tasks); i++ {
		before, after := text(tasks[i-1], "status", "timestamp"), text(tasks[i], "status", "timestamp")
		x.want(before >= after, "task %d has %s, the one before %s", i, after, before)
	}
	x.want(slices.Equal(ids(tasks), made), "the list is %v, want %v", ids(tasks), made)
}

func listIsNeverNull(x *trial) {
	r := x.ok(opList, object{"contextId": unique("nothing")})
	tasks, is := r.get("tasks").([]any)
	token, has := r.get("nextPageToken").(string)
	x.want(is && len(tasks) == 0 && has && token == "" && r.get("totalSize") == 0.0, "the empty list is %.300s", r.raw)
}

func artifactsOnRequest(x *trial) {
	context, _ := x.inContext(1)
	for asked, want := range map[any]bool{nil: false, false: false, true: true} {
		params := object{"contextId": context}
		if asked != nil {
			params["includeArtifacts"] = asked
		}
		k, _ := dig(x.ok(opList, params).result, "tasks", 0).(object)
		_, there := k["artifacts"]
		x.want(there == want, "includeArtifacts %v: artifacts are there: %v", asked, there)
	}
}

func filtersFilter(x *trial) {
	context, made := x.inContext(2)
	in := func(more object) []string {
		more["contextId"] = context
		return ids(x.pages(more))
	}
	x.want(sameSet(in(object{"status": "TASK_STATE_COMPLETED"}), made), "completed tasks are missing")
	x.want(len(in(object{"status": "TASK_STATE_WORKING"})) == 0, "there are working tasks")
	x.want(len(in(object{"statusTimestampAfter": since(time.Now().Add(time.Hour))})) == 0, "there are tasks of the future")
	x.want(sameSet(in(object{"statusTimestampAfter": since(time.Now().Add(-24 * time.Hour))}), made), "tasks of today are missing")
	for field, v := range map[string]any{
		"status": "working", "statusTimestampAfter": "yesterday", "historyLength": -1, "pageSize": 0,
	} {
		r := x.call(opList, object{field: v})
		x.refused(r, invalid())
		x.names(r, field)
	}
}
