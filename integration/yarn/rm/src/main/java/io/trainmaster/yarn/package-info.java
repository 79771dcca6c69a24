/**
 * Trainmaster's plug-ins for YARN's ResourceManager.
 *
 * <p>{@code yarn-site.xml} names three classes: {@link io.trainmaster.yarn.SidecarBridge} exchanges snapshots for
 * plans, {@link io.trainmaster.yarn.PlanAllocator} restricts allocations to the plan, and
 * {@link io.trainmaster.yarn.AdmissionRule} refuses jobs at submission. Without a plan in force, scheduling is that of
 * the stock CapacityScheduler.
 */
package io.trainmaster.yarn;
