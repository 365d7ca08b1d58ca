/* A worker's slot, for plain jobs that never suspend.

   ``run_jobs`` runs job after job like ``Slot._run_ready``. It returns the first job that suspends,
   fails or returns a value to Python, which awaits the job's ``Rest`` in the same asyncio task. */

#include "native.h"

/* -- Rest: the rest of a call ---------------------------------------------------------------------

   It returns the call's value, raises its error, or continues its coroutine after the first
   suspension. Like a coroutine it can be awaited once. */

typedef enum { SUSPENDED, GOING, RETURNED, RAISED, SPENT } RestState;

typedef struct {
    PyObject_HEAD
    PyObject *coroutine; /* in SUSPENDED and GOING; else NULL */
    PyObject *held;      /* its first yielded value, its result or its error; or NULL */
    RestState state;
} Rest;

/* Steals both references; NULL with an error set if there is no memory. */
static PyObject *
new_rest(State *names, RestState state, PyObject *coroutine, PyObject *held)
{
    Rest *rest = PyObject_GC_New(Rest, names->rest_type);
    if (rest == NULL) {
        Py_XDECREF(coroutine);
        Py_XDECREF(held);
        return NULL;
    }
    rest->coroutine = coroutine;
    rest->held = held;
    rest->state = state;
    PyObject_GC_Track((PyObject *)rest);
    return (PyObject *)rest;
}

static int
rest_traverse(Rest *rest, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(rest));
    Py_VISIT(rest->coroutine);
    Py_VISIT(rest->held);
    return 0;
}

static int
rest_clear(Rest *rest)
{
    rest->state = SPENT;
    Py_CLEAR(rest->coroutine);
    Py_CLEAR(rest->held);
    return 0;
}

static void
rest_dealloc(Rest *rest)
{
    PyTypeObject *type = Py_TYPE(rest);
    PyObject_GC_UnTrack(rest);
    (void)rest_clear(rest);
    type->tp_free(rest);
    Py_DECREF(type);
}

/* Resume the coroutine, like PyIter_Send. */
static PySendResult
rest_send(Rest *rest, PyObject *value, PyObject **result)
{
    PyObject *held = rest->held;
    PySendResult status;

    *result = NULL;
    switch (rest->state) {
    case SUSPENDED:
        rest->held = NULL;
        rest->state = GOING;
        *result = held;
        return PYGEN_NEXT;
    case GOING: {
        /* The running coroutine may drop this object, and its own last reference with it. */
        PyObject *coroutine = Py_NewRef(rest->coroutine);
        status = PyIter_Send(coroutine, value, result);
        Py_DECREF(coroutine);
        return status;
    }
    case RETURNED:
        rest->held = NULL;
        rest->state = SPENT;
        *result = held;
        return PYGEN_RETURN;
    case RAISED:
        rest->held = NULL;
        rest->state = SPENT;
        raise_error(held);
        return PYGEN_ERROR;
    case SPENT:
    default:
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return PYGEN_ERROR;
    }
}

/* Do the same by the protocol of iterators: a result becomes StopIteration. */
static PyObject *
rest_sent(Rest *rest, PyObject *value)
{
    PyObject *result;
    PySendResult status = rest_send(rest, value, &result);
    if (status != PYGEN_RETURN) return result;
    /* PyErr_SetObject would unpack a tuple into the arguments of StopIteration. */
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
    Py_DECREF(result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *
rest_next(Rest *rest)
{
    return rest_sent(rest, Py_None);
}

static PyObject *
rest_itself(PyObject *rest)
{
    return Py_NewRef(rest);
}

/* Raise in the coroutine: an exception, or its type, value and traceback. */
static PyObject *
rest_throw(Rest *rest, PyObject *args)
{
    if (rest->coroutine == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "only a call that has suspended takes an exception");
        return NULL;
    }
    Py_CLEAR(rest->held);
    rest->state = GOING;
    PyObject *throw = PyObject_GetAttrString(rest->coroutine, "throw");
    PyObject *result = throw == NULL ? NULL : PyObject_Call(throw, args, NULL);
    Py_XDECREF(throw);
    return result;
}

static PyObject *
rest_close(Rest *rest, PyObject *Py_UNUSED(nothing))
{
    PyObject *coroutine = Py_XNewRef(rest->coroutine);
    (void)rest_clear(rest);
    if (coroutine == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallMethod(coroutine, "close", NULL);
    Py_DECREF(coroutine);
    return result;
}

static PyMethodDef rest_methods[] = {
    {"send", (PyCFunction)rest_sent, METH_O, NULL},
    {"throw", (PyCFunction)rest_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)rest_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rest_slots[] = {
    {Py_tp_doc, "The rest of a begun job: await it for the job's result or error."},
    {Py_tp_dealloc, rest_dealloc},
    {Py_tp_traverse, rest_traverse},
    {Py_tp_clear, rest_clear},
    {Py_tp_iter, rest_itself},
    {Py_tp_iternext, rest_next},
    {Py_am_await, rest_itself},
    {Py_am_send, rest_send},
    {Py_tp_methods, rest_methods},
    {0, NULL},
};

PyType_Spec taskq_rest_spec = {
    .name = "taskq._native._plain.Rest",
    .basicsize = sizeof(Rest),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rest_slots,
};

/* -- run_jobs ---------------------------------------------------------------------------------- */

/* Results of ``run_jobs`` without a job: none is ready, the loop must turn, the slot must end. */
enum { EMPTY = 0, TURN = 1, SPOILT = 2 };

/* Offsets in an ENQUEUED record, its shortest length and its CRC, in bytes. */
enum { OPTIONS_AT = 6, FLAGS_AT = 8, RECORD_BYTES_MIN = 24, CRC_BYTES = 4 };

/* Indexes in a delivery and in a plan, which are named tuples. */
enum { LANE = 5, RECORD = 6, DELIVERY_FIELDS = 7 };
enum { DECODE = 0, CALL = 1, NONE_IS_KEPT = 2, PLAN_FIELDS = 5 };

/* The objects of one call of ``run_jobs``. */
typedef struct {
    /* borrowed from the arguments */
    PyObject *slot, *app, *made, *buffer, *feed, *plans, *settler;
    PyObject *running_job, *context_type, *monotonic, *slots;
    /* owned */
    PyObject *outcomes, *task;
    PyObject *lane, *task_name; /* of the last delivery, or NULL */
    Py_ssize_t body_at;         /* offset of the body in that lane's records, in bytes */
    Py_ssize_t outcomes_max;
    double turn_seconds;
    long flags_python; /* flags of jobs that only Python runs */
} Hot;

/* A begun job; the references are owned. */
typedef struct {
    PyObject *delivery, *plan, *job, *before;
    PyObject *coroutine; /* suspended; or another awaitable, not begun */
    PyObject *held;      /* its yielded value, its result or its error */
    RestState state;     /* SPENT before the call */
    int is_decoded;      /* whether its arguments were read */
} Begun;

static void
forget(Begun *begun)
{
    Py_CLEAR(begun->delivery);
    Py_CLEAR(begun->plan);
    Py_CLEAR(begun->job);
    Py_CLEAR(begun->before);
    Py_CLEAR(begun->coroutine);
    Py_CLEAR(begun->held);
    begun->state = SPENT;
    begun->is_decoded = 0;
}

/* Read a number from an attribute; -1 with an error set. */
static Py_ssize_t
size_of(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) return -1;
    Py_ssize_t size = PyLong_AsSsize_t(value);
    Py_DECREF(value);
    return size;
}

/* Return the truth of an object and steal its reference; -1 with an error set, or for NULL. */
static int
truth_of(PyObject *value)
{
    if (value == NULL) return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* Call a method and drop its result; -1 with an error set. */
static int
do_call(PyObject *object, PyObject *name)
{
    PyObject *result = PyObject_CallMethodNoArgs(object, name);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Return the payload as stored in the record, like ``Delivery.stored_payload``. */
static PyObject *
payload_of(State *names, Hot *hot, PyObject *delivery)
{
    PyObject *record = PyTuple_GET_ITEM(delivery, RECORD);
    const char *bytes = PyBytes_AS_STRING(record);
    Py_ssize_t start = hot->body_at, end = PyBytes_GET_SIZE(record) - CRC_BYTES;

    if (bytes[OPTIONS_AT] == 0 && bytes[OPTIONS_AT + 1] == 0 && start >= 0 && start <= end) {
        return PyBytes_FromStringAndSize(bytes + start, end - start);
    }
    return PyObject_GetAttr(delivery, names->stored_payload);
}

/* Return whether C may run the job: by its record's flags, the payload is stored as it is, and the
   job's end affects no other job. */
static int
is_plain(Hot *hot, Begun *begun)
{
    PyObject *record = PyTuple_GET_ITEM(begun->delivery, RECORD);
    if (!PyBytes_CheckExact(record) || PyBytes_GET_SIZE(record) < RECORD_BYTES_MIN) return 0;
    return !((unsigned char)PyBytes_AS_STRING(record)[FLAGS_AT] & hot->flags_python);
}

/* Make the context of a job. If the worker has one log, its class is known, and ``__init__`` is
   skipped. */
static PyObject *
new_context(State *names, Hot *hot, PyObject *delivery)
{
    if (hot->made != hot->context_type) {
        PyObject *const args[] = {delivery, hot->app};
        return PyObject_Vectorcall(hot->made, args, 2, NULL);
    }
    PyTypeObject *type = (PyTypeObject *)hot->context_type;
    PyObject *job = type->tp_alloc(type, 0);
    if (job == NULL) return NULL;
    if (set_slot(names, job, JOB_DELIVERY, names->delivery, delivery) < 0
        || set_slot(names, job, JOB_APP, names->app, hot->app) < 0
        || set_slot(names, job, JOB_PACKS, names->packs, Py_False) < 0
        || set_slot(names, job, JOB_CHILDREN, names->children, Py_None) < 0
        || set_slot(names, job, JOB_CHILDREN_SIZE, names->_children_size, names->zero) < 0) {
        Py_DECREF(job);
        return NULL;
    }
    return job;
}

/* Read task and offset of the body from a delivery's lane, unless it is the latest lane. */
static int
look_at_lane(State *names, Hot *hot, PyObject *lane)
{
    if (hot->lane == lane) return 0;
    Py_CLEAR(hot->lane);
    Py_XSETREF(hot->task_name, PyObject_GetAttr(lane, names->task));
    if (hot->task_name == NULL) return -1;
    hot->body_at = size_of(lane, names->body_at);
    if (hot->body_at == -1 && PyErr_Occurred()) return -1;
    hot->lane = Py_NewRef(lane);
    return 0;
}

/* Take the next delivery and prepare its call. 1: done; 0: the buffer is empty; -1 with an error
   set, which is not the job's. */
static int
begin(State *names, Hot *hot, Begun *begun, PyObject **token)
{
    Py_ssize_t waiting = PyObject_Size(hot->buffer);
    if (waiting <= 0) return (int)waiting;
    begun->delivery = PyObject_CallMethodNoArgs(hot->buffer, names->popleft);
    if (begun->delivery == NULL) return -1;
    if (!PyTuple_Check(begun->delivery) || PyTuple_GET_SIZE(begun->delivery) != DELIVERY_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "the buffer has an item that is no delivery");
        return -1;
    }
    if (set_slot(names, hot->slot, SLOT_DELIVERY, names->delivery, begun->delivery) < 0) return -1;
    Py_ssize_t low = size_of(hot->feed, names->low);
    if (low == -1 && PyErr_Occurred()) return -1;
    if (waiting - 1 < low && do_call(hot->feed, names->refill) < 0) return -1;
    if (look_at_lane(names, hot, PyTuple_GET_ITEM(begun->delivery, LANE)) < 0) return -1;
    begun->plan = PyObject_GetItem(hot->plans, hot->task_name);
    if (begun->plan == NULL) return -1;
    if (!PyTuple_Check(begun->plan) || PyTuple_GET_SIZE(begun->plan) != PLAN_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a plan has five parts");
        return -1;
    }
    begun->job = new_context(names, hot, begun->delivery);
    if (begun->job == NULL) return -1;
    PyObject *before_job = PyContextVar_Set(hot->running_job, begun->job);
    if (before_job == NULL) return -1;
    if (*token == NULL) {
        *token = before_job; /* only the first token resets to no job */
    }
    else {
        Py_DECREF(before_job);
    }
    begun->before = PyContext_CopyCurrent();
    return begun->before == NULL ? -1 : 1;
}

/* Call a job's function with decoded arguments; steals their reference. */
static PyObject *
call_decoded(Begun *begun, PyObject *decoded)
{
    PyObject *awaitable = NULL;

    if (PyTuple_Check(decoded) && PyTuple_GET_SIZE(decoded) == 2
        && PyTuple_Check(PyTuple_GET_ITEM(decoded, 0))
        && PyDict_Check(PyTuple_GET_ITEM(decoded, 1))) {
        begun->is_decoded = 1;
        awaitable = PyObject_Call(PyTuple_GET_ITEM(begun->plan, CALL),
                                  PyTuple_GET_ITEM(decoded, 0), PyTuple_GET_ITEM(decoded, 1));
    }
    else {
        PyErr_SetString(PyExc_TypeError, "a payload is decoded to a tuple and a dict");
    }
    Py_DECREF(decoded);
    return awaitable;
}

/* Decode the arguments of a job and call its function; NULL with an error set. */
static PyObject *
call(State *names, Hot *hot, Begun *begun)
{
    PyObject *decode = PyTuple_GET_ITEM(begun->plan, DECODE);
    PyObject *payload = payload_of(names, hot, begun->delivery);
    PyObject *decoded, *values = NULL;

    if (payload == NULL) return NULL;
    if (Py_IS_TYPE(decode, names->decoder_type)) {
        values = taskq_decode(decode, payload, &decoded);
    }
    else {
        decoded = PyObject_CallOneArg(decode, payload);
    }
    Py_DECREF(payload);
    if (values == NULL) return decoded == NULL ? NULL : call_decoded(begun, decoded);
    begun->is_decoded = 1;
    PyObject *awaitable
        = PyObject_VectorcallDict(PyTuple_GET_ITEM(begun->plan, CALL), NULL, 0, values);
    Py_DECREF(values);
    return awaitable;
}

/* Run a job until it ends or suspends; its own error is kept in ``held``. -1 with an error set,
   which is not the job's. */
static int
run(State *names, Hot *hot, Begun *begun)
{
    PyObject *awaitable = call(names, hot, begun);
    PySendResult status = PYGEN_ERROR;

    if (awaitable != NULL) {
        if (!PyCoro_CheckExact(awaitable)) {
            begun->coroutine = awaitable; /* to be awaited by Python */
            return 0;
        }
        status = PyIter_Send(awaitable, Py_None, &begun->held);
    }
    if (status == PYGEN_NEXT) {
        begun->coroutine = awaitable;
        begun->state = SUSPENDED;
        return 0;
    }
    Py_XDECREF(awaitable);
    if (status == PYGEN_RETURN) {
        begun->state = RETURNED;
        return 0;
    }
    begun->held = take_error();
    begun->state = RAISED;
    return begun->held == NULL ? -1 : 0;
}

/* Return whether a job succeeded, and its delivery is the whole outcome; -1 with an error set. */
static int
is_success(State *names, Hot *hot, Begun *begun)
{
    if (begun->state != RETURNED || begun->held != Py_None) return 0;
    int is_kept = PyObject_IsTrue(PyTuple_GET_ITEM(begun->plan, NONE_IS_KEPT));
    if (is_kept <= 0) return is_kept;
    PyObject *children = get_slot(names, begun->job, JOB_CHILDREN, names->children);
    if (children == NULL) return -1;
    int has_children = children != Py_None;
    Py_DECREF(children);
    if (has_children) return 0;
    int is_abandoned = truth_of(get_slot(names, hot->slot, SLOT_ABANDONED, names->abandoned));
    return is_abandoned < 0 ? -1 : !is_abandoned;
}

/* Pass a success on to the settler; -1 with an error set. */
static int
settle(State *names, Hot *hot, Begun *begun)
{
    if (set_slot(names, hot->slot, SLOT_DELIVERY, names->delivery, Py_None) < 0
        || PyList_Append(hot->outcomes, begun->delivery) < 0) {
        return -1;
    }
    int is_scheduled = truth_of(PyObject_GetAttr(hot->settler, names->scheduled));
    if (is_scheduled < 0) return -1;
    if (!is_scheduled) return do_call(hot->settler, names->flush_soon);
    if (PyList_GET_SIZE(hot->outcomes) >= hot->outcomes_max) {
        return do_call(hot->settler, names->flush);
    }
    return 0;
}

/* Return whether a job changed context variables or cancelled its slot; -1 with an error set. */
static int
is_spoilt(State *names, Hot *hot, Begun *begun)
{
    PyObject *after = PyContext_CopyCurrent();
    if (after == NULL) return -1;
    int is_changed = PyObject_RichCompareBool(after, begun->before, Py_NE);
    Py_DECREF(after);
    if (is_changed < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        PyErr_Clear(); /* comparing values of the variables may raise */
        return 1;
    }
    return is_changed ? 1 : truth_of(PyObject_CallMethodNoArgs(hot->task, names->cancelling));
}

/* Return an unfinished job for Python: (delivery, plan, job, before, True if its arguments were
   decoded or None, its awaitable or None before the call). */
static PyObject *
handed_over(State *names, Begun *begun)
{
    PyObject *rest;
    if (begun->state != SPENT) {
        rest = new_rest(names, begun->state, begun->coroutine, begun->held);
        begun->coroutine = begun->held = NULL;
    }
    else {
        rest = Py_NewRef(begun->coroutine == NULL ? Py_None : begun->coroutine);
    }
    if (rest == NULL) return NULL;
    return Py_BuildValue("(OOOOON)", begun->delivery, begun->plan, begun->job, begun->before,
                         begun->is_decoded ? Py_True : Py_None, rest);
}

/* Run jobs up to the first that Python must finish; NULL with an error set. */
static PyObject *
run_until(State *names, Hot *hot, Begun *begun, double turn, PyObject **token)
{
    for (;;) {
        int is_begun = begin(names, hot, begun, token);
        if (is_begun <= 0) return is_begun < 0 ? NULL : PyLong_FromLong(EMPTY);
        if (!is_plain(hot, begun)) return handed_over(names, begun);
        if (run(names, hot, begun) < 0) return NULL;
        int is_done = is_success(names, hot, begun);
        if (is_done <= 0) return is_done < 0 ? NULL : handed_over(names, begun);
        if (settle(names, hot, begun) < 0) return NULL;
        PyObject *now = PyObject_CallNoArgs(hot->monotonic);
        if (now == NULL) return NULL;
        double seconds = PyFloat_AsDouble(now);
        int is_bad = seconds == -1.0 && PyErr_Occurred() ? -1 : is_spoilt(names, hot, begun);
        if (is_bad == 0 && seconds - turn > hot->turn_seconds) {
            Py_DECREF(now);
            return PyLong_FromLong(TURN);
        }
        if (is_bad == 0) {
            is_bad = set_slot(names, hot->slot, SLOT_SINCE, names->since, now);
        }
        Py_DECREF(now);
        if (is_bad < 0) return NULL;
        forget(begun);
        if (is_bad == 0) continue;
        PyObject *done = PyObject_CallMethodOneArg(hot->slots, names->replace, hot->slot);
        if (done == NULL) return NULL;
        Py_DECREF(done);
        return PyLong_FromLong(SPOILT);
    }
}

/* run_jobs(slot, turn, token, hot) -> (token, EMPTY, TURN, SPOILT or a begun job)

   ``turn`` is the time of the loop's latest turn, in monotonic seconds. ``token`` resets
   ``running_job``; it is from the first job since the slot rested, None before that job. */
PyObject *
taskq_run_jobs(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *names = state_of(module);
    Hot hot = {.lane = NULL};
    Begun begun = {.state = SPENT};
    PyObject *opened, *hook, *token = NULL, *result = NULL;

    if (count != 4 || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "run_jobs() takes slot, turn, token and hot");
        return NULL;
    }
    double turn = PyFloat_AsDouble(args[1]);
    if (turn == -1.0 && PyErr_Occurred()) return NULL;
    if (!PyArg_ParseTuple(args[3], "OOOOOOOOOO!OOdnl", &hot.app, &hot.made, &opened, &hot.buffer,
                          &hot.feed, &hot.plans, &hot.settler, &hook, &hot.running_job,
                          &PyType_Type, &hot.context_type, &hot.monotonic, &hot.slots,
                          &hot.turn_seconds, &hot.outcomes_max, &hot.flags_python)) {
        return NULL;
    }
    hot.slot = args[0];
    hot.outcomes = PyObject_GetAttr(hot.settler, names->outcomes);
    hot.task = hot.outcomes == NULL ? NULL : PyObject_GetAttr(hot.slot, names->task);
    if (hot.task != NULL && PyList_CheckExact(hot.outcomes)) {
        token = args[2] == Py_None ? NULL : Py_NewRef(args[2]);
        result = run_until(names, &hot, &begun, turn, &token);
        forget(&begun);
    }
    else if (hot.task != NULL) {
        PyErr_SetString(PyExc_TypeError, "outcomes are a list");
    }
    Py_XDECREF(hot.outcomes);
    Py_XDECREF(hot.task);
    Py_XDECREF(hot.lane);
    Py_XDECREF(hot.task_name);
    if (result == NULL) {
        Py_XDECREF(token);
        return NULL;
    }
    return Py_BuildValue("(NN)", token == NULL ? Py_NewRef(Py_None) : token, result);
}
